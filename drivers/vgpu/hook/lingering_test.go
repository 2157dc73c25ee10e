package hook

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// cgroups are the containers with processes.
type cgroups struct {
	mu      sync.Mutex
	running map[string]bool
}

func (c *cgroups) set(container string, runs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[container] = runs
}

func (c *cgroups) runs(_ context.Context, _, container string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if container != "" {
		return c.running[container]
	}
	for _, runs := range c.running {
		if runs {
			return true
		}
	}
	return false
}

// TestHookKeepsSharesWhenProcessesRunAfterTheStopMessage: the runtime's message is no proof about the GPU.
func TestHookKeepsSharesWhenProcessesRunAfterTheStopMessage(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,20:;", "main")
	h, _ := setup(t, p)
	tree := &cgroups{running: map[string]bool{}}
	h.Runs = tree.runs
	ended := &instance{}
	h.Instances = ended
	made := container(p, "main")
	adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), made)
	if err != nil {
		t.Fatal(err)
	}
	made.Annotations = adjustment.Annotations
	tree.set(made.Id, true)
	for range 2 { // a removal may follow the stop
		if _, err := h.StopContainer(t.Context(), sandbox(p), made); err != nil {
			t.Fatal(err)
		}
		if err := h.RemoveContainer(t.Context(), sandbox(p), made); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.RemovePodSandbox(t.Context(), sandbox(p)); err != nil {
		t.Fatal(err)
	}
	// The runtime lists nothing of the pod when the hook connects again.
	if _, err := h.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if uids, _ := h.Limiter.Pods(); h.Book.Len() != 1 || len(ended.ended) != 0 || !slices.Equal(uids, []string{"uid-train"}) {
		t.Errorf("%d are booked, instances of %v are ended, directories of %v", h.Book.Len(), ended.ended, uids)
	}
	// A hook that was restarted is given the container as stopped.
	made.State = api.ContainerState_CONTAINER_STOPPED
	again, _ := setup(t, p)
	again.Runs = tree.runs
	if _, err := again.Synchronize(t.Context(), []*api.PodSandbox{sandbox(p)}, []*api.Container{made}); err != nil || again.Book.Len() != 1 {
		t.Errorf("after a restart %d are booked (%v)", again.Book.Len(), err)
	}

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Follow(ctx) }()
	tree.set(made.Id, false)
	for deadline := time.Now().Add(time.Minute); h.Book.Len() > 0; time.Sleep(time.Millisecond) { // a cgroup sends no event here
		if time.Now().After(deadline) {
			t.Fatal("the shares are not free after the last process has ended")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if h.freeEnded(t.Context()) != 0 || !slices.Equal(ended.ended, []string{"uid-train"}) {
		t.Errorf("instances of %v are ended", ended.ended)
	}
}
