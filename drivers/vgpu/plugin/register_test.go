package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// refusing is an API server with one node, which never changes by itself; it refuses the first registrations.
func refusing(registrations int) (*fake.Clientset, chan string) {
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	written := make(chan string, 1)
	api.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if registrations > 0 {
			registrations--
			return true, nil, errors.New("etcdserver: request timed out")
		}
		written <- string(action.(clienttesting.PatchAction).GetPatch())
		return false, nil, nil
	})
	return api, written
}

func register(ctx context.Context, api *fake.Clientset, after func(time.Duration) <-chan time.Time) chan error {
	gpus := &sharedgpus.Set{Factor: 10, Cards: []sharedgpus.Card{{GPU: &inventory.GPU{UUID: "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"},
		Slots: 10,
		Units: 4914, Cores: 100, Healthy: true}}}
	r := &registrar{client: api, node: nodeName, resource: "volcano.sh/vgpu-memory", now: time.Now,
		sharedGPUs: func() *sharedgpus.Set { return gpus },
		changed:    make(chan struct{}, 1), after: after}
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	return ended
}

func TestRegisterRetriesAfterAFailure(t *testing.T) {
	const refusals = 10
	api, written := refusing(refusals)
	var pauses []time.Duration
	ctx, cancel := context.WithCancel(t.Context())
	var printed []string
	ctx = logr.NewContext(ctx, funcr.New(func(_, line string) { printed = append(printed, line) }, funcr.Options{}))
	ended := register(ctx, api, func(pause time.Duration) <-chan time.Time {
		pauses = append(pauses, pause)
		now := make(chan time.Time, 1)
		now <- time.Time{}
		return now
	})
	<-written
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	node, err := api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || node.Annotations[annotation.NodeRegister] == "" {
		t.Errorf("annotations %v (%v), want the GPUs registered", node.Annotations, err)
	}
	if len(pauses) != refusals {
		t.Fatalf("%d pauses for %d refusals: %v", len(pauses), refusals, pauses)
	}
	if first, last := pauses[0], pauses[refusals-1]; first < 500*time.Millisecond || first > time.Second || last < 30*time.Second ||
		last > 40*time.Second {
		t.Errorf("pauses from %s to %s, want half a second to half a minute: %v", first, last, pauses)
	}
	if len(printed) < refusals {
		t.Fatalf("%d lines for %d refusals: %v", len(printed), refusals, printed)
	}
	for _, part := range []string{"request timed out", nodeName, "trying again"} {
		if !strings.Contains(printed[0], part) {
			t.Errorf("it says %q, without %q", printed[0], part)
		}
	}
}

func TestRegisterEndsWithTheRole(t *testing.T) {
	api, _ := refusing(1)
	waits := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := register(ctx, api, func(time.Duration) <-chan time.Time {
		close(waits)
		return nil // for ever
	})
	<-waits
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// Volcano 1.15.0 requests a report at every event of a node. With a plugin that answers at once, its scheduler wrote one Node 641 times in
// 10 s.
func TestRegisterAnswersAHandshakeEveryThirtySecondsAtMost(t *testing.T) {
	now := time.Unix(1763000000, 0)
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	gpus := &sharedgpus.Set{Factor: 10, Cards: []sharedgpus.Card{{GPU: &inventory.GPU{UUID: "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"},
		Slots: 10,
		Units: 4914, Cores: 100, Healthy: true}}}
	r := &registrar{client: api, node: nodeName, resource: "volcano.sh/vgpu-memory", now: func() time.Time { return now }, handshake: true,
		pause:      handshakePause,
		sharedGPUs: func() *sharedgpus.Set { return gpus }}
	answered := 0
	api.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), annotation.NodeHandshake) {
			answered++
		}
		return false, nil, nil
	})
	node, err := api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	for range 120 { // a minute in half seconds
		if err != nil {
			t.Fatal(err)
		}
		pause, registered := r.register(t.Context(), node)
		if registered != nil {
			t.Fatal(registered)
		}
		if node, err = api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if pause > handshakePause {
			t.Fatalf("it looks again in %s, where Volcano waits a minute", pause)
		}
		now = now.Add(500 * time.Millisecond)
		node.Annotations[annotation.NodeHandshake] = "Requesting_2025.11.13 02:13:20" // by the scheduler, at the event
	}
	if answered != 2 {
		t.Errorf("%d answers in a minute, want 2", answered)
	}
	// Other changes are written at once.
	gpus.Cards[0].Healthy = false
	if _, err := r.register(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if node, err = api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := node.Annotations[annotation.NodeRegister]; !strings.Contains(got, ",0,4914,") || !strings.Contains(got, ",false,") {
		t.Errorf("registered as %s, want a card for no container, since Volcano does not look at its health", got)
	}
}
