package cluster

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// nodesOf returns a client of a server, as the provider makes it.
func nodesOf(t *testing.T, patience time.Duration, handler http.HandlerFunc) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	config, _, err := Settings{Host: server.URL, Patience: patience}.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestClientRepeatsRequestWhenServerIsBusyForAMoment(t *testing.T) {
	const busy, broken, away = http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable
	ctx, nobody := t.Context(), metav1.PatchOptions{}
	list := func(c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	}
	patch := func(kind types.PatchType) func(kubernetes.Interface) error {
		return func(c kubernetes.Interface) error {
			_, err := c.CoreV1().Nodes().Patch(ctx, "a", kind, []byte("{}"), nobody)
			return err
		}
	}
	remove := func(c kubernetes.Interface) error { return c.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}) }
	for _, c := range []struct {
		name   string
		status int
		ask    func(kubernetes.Interface) error
		asked  int32
	}{
		{"a read after 429", busy, list, 2},
		{"a read after 500", broken, list, 2},
		{"a read after 503", away, list, 2},
		{"a server-side apply after 500", broken, patch(types.ApplyYAMLPatchType), 2},
		{"a merge after 500", broken, patch(types.MergePatchType), 2},
		{"a deletion after 500", broken, remove, 2},
		{"a strategic merge after 429", busy, patch(types.StrategicMergePatchType), 2},
		{"a JSON patch after 500, which may have had an effect", broken, patch(types.JSONPatchType), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int32
			client := nodesOf(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if asked.Add(1) == 1 {
					w.WriteHeader(c.status)
				}
				_, _ = w.Write([]byte(`{"kind":"NodeList","apiVersion":"v1","items":[]}`))
			})
			if err := c.ask(client); asked.Load() != c.asked || (err != nil) != (c.asked == 1) {
				t.Errorf("%d requests, error %v; want %d", asked.Load(), err, c.asked)
			}
		})
	}
}

func TestClientRepeatsReadWhenItsAnswerBreaksOff(t *testing.T) {
	for _, c := range []struct {
		name  string
		ask   func(kubernetes.Interface) error
		asked int32
	}{
		{"a read", func(c kubernetes.Interface) error {
			_, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			return err
		}, 2},
		{"a write, which may have had an effect", func(c kubernetes.Interface) error {
			_, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{}, metav1.CreateOptions{})
			return err
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int32
			client := nodesOf(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
				text := `{"kind":"NodeList","apiVersion":"v1","items":[]}`
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Length", strconv.Itoa(len(text)))
				if asked.Add(1) == 1 {
					_, _ = w.Write([]byte(text[:10]))
					panic(http.ErrAbortHandler) // closes the connection
				}
				_, _ = w.Write([]byte(text))
			})
			if err := c.ask(client); asked.Load() != c.asked || (err != nil) != (c.asked == 1) {
				t.Errorf("%d requests, error %v; want %d", asked.Load(), err, c.asked)
			}
		})
	}
}

func TestRequestEndsWithItsReasonWhenTheServerIsSilent(t *testing.T) {
	client := nodesOf(t, 50*time.Millisecond, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	_, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if !errors.Is(err, errSilent) {
		t.Errorf("got %v", err)
	}
}

// TestClientQueriesSilentServerOnce makes a hundred reads of a server that answers none: the first waits, the others do not.
func TestClientQueriesSilentServerOnce(t *testing.T) {
	var asked atomic.Int32
	client := nodesOf(t, 50*time.Millisecond, func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-r.Context().Done()
	})
	for range 100 {
		if _, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{}); !errors.Is(err, errSilent) {
			t.Fatalf("got %v", err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestSilenceEndsWithAnAnswer(t *testing.T) {
	seen := &silence{}
	seen.unanswered(time.Now())
	if !seen.lasts() {
		t.Error("a server that left a request unanswered is asked again at once")
	}
	if seen.answer(); seen.lasts() {
		t.Error("a server that answers again is taken as silent")
	}
	began := time.Now()
	seen.answer()
	if seen.unanswered(began); seen.lasts() {
		t.Error("a server that answered another request meanwhile is taken as silent")
	}
}
