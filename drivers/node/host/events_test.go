package host

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// written are the Events that reach the API server, by namespace.
type written struct {
	mu    sync.Mutex
	names map[string][]string
}

func (w *written) in(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names[namespace]
}

func (w *written) client() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("*", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		event := &corev1.Event{}
		if create, ok := action.(clienttesting.CreateAction); ok {
			event = create.GetObject().(*corev1.Event)
		}
		w.names[action.GetNamespace()] = append(w.names[action.GetNamespace()], event.Name)
		return true, event, nil
	})
	return client
}

func claim(namespace, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: namespace, Name: name,
		UID: types.UID(name)}
}

func TestEventsOfOneNamespaceDoNotDelayOthers(t *testing.T) {
	w := &written{names: map[string][]string{}}
	recorder, stop := Recorder(t.Context(), w.client(), "gpu-plugin", "node-a")
	defer stop()
	for i := range 10_000 {
		recorder.Event(claim("attacker", fmt.Sprintf("claim-%d", i)), corev1.EventTypeWarning, "InvalidConfig", fmt.Sprintf("wrong: %d", i))
		if i%500 == 0 { // the recorder drops what exceeds its queue of 1,000; the flood must reach its filter
			time.Sleep(time.Millisecond)
		}
	}
	deadline := time.Now().Add(2 * time.Minute)
	for i := 0; len(w.in("tenant")) == 0 && time.Now().Before(deadline); i++ {
		recorder.Event(claim("tenant", fmt.Sprintf("honest-%d", i)), corev1.EventTypeWarning, "DeviceInUse", "waiting for a device")
		time.Sleep(time.Millisecond)
	}
	if len(w.in("tenant")) == 0 {
		t.Error("another tenant's Event is kept back")
	}
	if got := len(w.in("attacker")); got == 0 || got > eventBurst+20 {
		t.Errorf("%d Events of the attacker's namespace reach the API server, want at most %d at once", got, eventBurst)
	} else {
		t.Logf("attacker sees: %d Events of 10,000", got)
	}
}

func TestEventsAcceptTheLongestPodName(t *testing.T) {
	w := &written{names: map[string][]string{}}
	recorder, stop := Recorder(t.Context(), w.client(), "gpu-plugin", "node-a")
	defer stop()
	recorder.Event(claim("tenant", strings.Repeat("a", validation.DNS1123SubdomainMaxLength)), corev1.EventTypeWarning, "InvalidConfig",
		strings.Repeat("b", 900))
	deadline := time.Now().Add(2 * time.Minute)
	for len(w.in("tenant")) == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	names := w.in("tenant")
	if len(names) != 1 || len(validation.IsDNS1123Subdomain(names[0])) > 0 {
		t.Errorf("Events %q, want one with a name that the API server takes", names)
	}
}
