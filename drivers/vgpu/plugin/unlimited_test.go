package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/gpu/limiter/unlimited"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/podwatch"
)

func TestUnlimitedContainerGetsAnEventAndItsPodFailsWhenClosed(t *testing.T) {
	for name, test := range map[string]struct {
		closed  bool
		backend injection.Backend
		events  int
	}{"open": {false, injection.Library, 1}, "closed": {true, injection.Library, 2}, "another limiter": {true, injection.HAMiCore, 0}} {
		t.Run(name, func(t *testing.T) {
			const gpu = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
			o, client, pod := telling(t)
			id := strings.Repeat("a", 64)
			pod.Spec.NodeName = nodeName
			pod.Annotations[annotation.PodDevices] = gpu + ",NVIDIA,1024,0:;"
			pod.Spec.Containers = pod.Spec.Containers[:1]
			pod.Spec.Containers[0].Resources.Limits["volcano.sh/vgpu-memory"] = resource.MustParse("1024")
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning,
				ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://" + id}}}
			if _, err := client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			pods, err := podwatch.Watch(t.Context(), client, nodeName, func(*corev1.Pod) {})
			if err != nil {
				t.Fatal(err)
			}
			options := &Options{HostProc: t.TempDir(), LimiterClosed: test.closed}
			options.StateDir = t.TempDir()
			if err := account.Make(options.stateFile("accounts/uid-train_main"), false); err != nil {
				t.Fatal(err)
			}
			process := filepath.Join(options.HostProc, "4242")
			if err := os.Mkdir(process, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(process, "cgroup"), []byte("0::/kubepods/poduid-train/"+id+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			w := newUnlimited(options, test.backend, func() []unlimited.GPU {
				return []unlimited.GPU{{UUID: gpu, Processes: func() ([]uint32, error) { return []uint32{4242}, nil }}}
			}, &source{pods: pods, resources: o.resources}, o.failing)
			for range 3 {
				w.Look(t.Context())
			}
			events := o.failing.events.(*record.FakeRecorder).Events
			if len(events) != test.events {
				t.Fatalf("%d Events, want %d", len(events), test.events)
			}
			if test.events > 0 {
				if text := <-events; !strings.Contains(text, "ShareNotLimited process 4242 of container main uses GPU "+gpu) {
					t.Error(text)
				}
			}
			after, err := client.CoreV1().Pods("default").Get(t.Context(), "train", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if failed := after.Status.Phase == corev1.PodFailed && after.Status.Reason == host.ReasonSharesRefused; failed != (test.events == 2) {
				t.Errorf("status %+v", after.Status)
			}
		})
	}
}
