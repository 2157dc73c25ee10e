package capability_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/node/capability"
)

// follow runs Follow over states, one a tick, and returns those at which it queried the gates.
func follow(ctx context.Context, states []capability.State) (queried []capability.State) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTicker(capability.StateInterval)
	defer tick.Stop()
	read := 0
	capability.Follow(ctx, tick.C, func(context.Context) (capability.State, error) {
		state := states[read]
		if read++; read == len(states) {
			cancel()
		}
		if state.Version == "" {
			return state, errors.New("the server is away")
		}
		return state, nil
	}, func(context.Context) bool {
		queried = append(queried, states[read-1])
		return true
	})
	return queried
}

// The server is upgraded and rolled back: its version string stays, the version that it emulates changes. Then it is restarted.
func TestFollowQueriesAgainWhenTheVersionOrTheConnectionChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := func(version, connection string) capability.State {
			return capability.State{Version: version, Connection: connection}
		}
		states := []capability.State{state("v1.36.3", "a"), state("v1.36.3", "a"), state("v1.36.3 emulating 1.35", "a"), {},
			state("v1.36.3 emulating 1.35", "a"), state("v1.36.3", "b"), {}, state("v1.36.3", "c"), state("v1.36.3", "c")}
		want := []capability.State{states[0], states[2], states[5], states[7]}
		if got := follow(t.Context(), states); !slices.Equal(got, want) {
			t.Errorf("queried at %+v, want %+v", got, want)
		}
	})
}

// A proxy that ends each connection must not cause a query at each tick.
func TestFollowQueriesAtABoundedRateWhenEveryConnectionIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hours := 10
		states := make([]capability.State, hours*int(time.Hour/capability.StateInterval))
		for i := range states {
			states[i] = capability.State{Version: "v1.36.3", Connection: strings.Repeat("c", i)}
		}
		if got := len(follow(t.Context(), states)); got < 6*hours || got > 6*hours+5 {
			t.Errorf("queried %d times in %d hours; want about six times an hour", got, hours)
		}
	})
}

func TestStateHasAnotherConnectionAfterTheServerWasRestarted(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			t.Errorf("requested %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode(version.Info{GitVersion: "v1.36.3", Major: "1", Minor: "36"}) //nolint:errchkjson // a plain struct
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	read := func() capability.State {
		t.Helper()
		state, err := capability.StateOf(t.Context(), client.Discovery())
		if err != nil || state.Version != "v1.36.3" || state.Connection == "" {
			t.Fatalf("state %+v, error %v", state, err)
		}
		return state
	}
	first := read()
	if again := read(); again != first {
		t.Errorf("state %+v, then %+v by the same connection", first, again)
	}
	server.CloseClientConnections()
	if later := read(); later.Connection == first.Connection {
		t.Errorf("the connection is %s before and after the restart", later.Connection)
	}
}
