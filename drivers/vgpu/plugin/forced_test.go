package plugin

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/node/occupancy/occupancytest"
	"gpufabric.io/drivers/vgpu/annotation"
)

// TestAllocateGivesAShareOnceWhenPodsAreForceDeleted takes a GPU's whole memory from pods whose containers are processes in the kernel's
// cgroups and run on. The scheduler, which does not see them, gives it to the next pod.
func TestAllocateGivesAShareOnceWhenPodsAreForceDeleted(t *testing.T) {
	const number = "volcano.sh/vgpu-number"
	root := filepath.Join(t.TempDir(), "cgroup")
	pods := occupancytest.Real(t, root)
	n := start(t, "--gpu-memory-factor=10", "--cgroup-root="+root)
	n.kubelet.AwaitAllocatable(number, 20)
	whole := n.machine.GPUs[0].UUID + ",NVIDIA,4096,0:;"
	remove := func(name string) error {
		return n.api.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	deleted := make(chan struct{}, 1)
	pods.Taken(func(_ int, pod string) {
		name := strings.TrimPrefix(pod, "uid-")
		n.schedule(name, whole, "main")
		ids, _ := n.allocate(number, 1)
		n.phase(name, annotation.BindSuccess)
		n.kubelet.Free(number, ids...) // a pod that is deleted by force is forgotten at once
	}, func(pod string) error {
		defer func() { deleted <- struct{}{} }()
		return remove(strings.TrimPrefix(pod, "uid-"))
	}, func(try int) {
		<-deleted
		for again := 0; ; again++ {
			name := fmt.Sprintf("next-%d-%d", try, again)
			n.schedule(name, whole, "main")
			ids, err := n.tryAllocate(number, 1)
			n.kubelet.Free(number, ids...)
			if err == nil {
				n.phase(name, annotation.BindSuccess)
			} else if !strings.Contains(err.Error(), "still runs") {
				t.Fatal(err)
			}
			if err := remove(name); err != nil {
				t.Fatal(err)
			}
			if err == nil {
				return
			}
		}
	})
}
