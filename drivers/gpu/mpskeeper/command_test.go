package mpskeeper

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/port"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/hardware/driver"
)

// get retries until the keeper gives the expected answer.
func get(t *testing.T, url, want string) {
	t.Helper()
	said := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			said = err.Error()
			continue
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if said = response.Status + " " + string(text); err == nil && strings.Contains(said, want) {
			return
		}
	}
	t.Errorf("%s answers %s, want %s in it", url, said, want)
}

func TestCommandReportsHealthAndDaemons(t *testing.T) {
	ports, err := port.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	mps := &sharing.MPS{Dir: t.TempDir(), Programs: programs.Runner{Driver: func() driver.Location { return driver.Location{} }}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, mps, address, nil) }()
	get(t, "http://"+address+"/healthz", "200 OK")
	get(t, "http://"+address+"/metrics", `gpufabric_mps_daemons{state="ready"} 0`)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), mps, "256.0.0.1:1", nil); err == nil || !strings.Contains(err.Error(), "--metrics-address") {
		t.Errorf("an address that nobody has: %v", err)
	}
}
