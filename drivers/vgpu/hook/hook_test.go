package hook

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/assignment"
	"gpufabric.io/drivers/vgpu/cards"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
)

const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

// world is a node with one card of 49140 MiB, as the hook sees it.
type world struct {
	cached, fresh  map[string]*corev1.Pod
	served, failed []string
}

func (w *world) Pod(_ context.Context, namespace, name, uid string, fresh bool) (*corev1.Pod, error) {
	from := w.cached
	if fresh {
		from = w.fresh
	}
	if pod := from[name]; pod != nil && string(pod.UID) == uid {
		return pod, nil
	}
	return nil, errors.New("pod " + namespace + "/" + name + " of UID " + uid + " is not there")
}

func (w *world) Served(pod *corev1.Pod, container string) {
	w.served = append(w.served, pod.Name+"/"+container)
}
func (w *world) Failed(pod *corev1.Pod, container string, _ error) {
	w.failed = append(w.failed, pod.Name+"/"+container)
}

func setup(t *testing.T, pods ...*corev1.Pod) (*Hook, *world) {
	w := &world{cached: map[string]*corev1.Pod{}, fresh: map[string]*corev1.Pod{}}
	for _, pod := range pods {
		w.cached[pod.Name], w.fresh[pod.Name] = pod, pod
	}
	deck := &cards.Deck{Factor: 10, Cards: []cards.Card{{GPU: &inventory.GPU{UUID: uuid}, Slots: 10, Units: 4914, Cores: 100, Healthy: true}}}
	root := t.TempDir()
	return &Hook{
		Resources: assignment.Resources{Number: "volcano.sh/vgpu-number", Memory: "volcano.sh/vgpu-memory", Cores: "volcano.sh/vgpu-cores"},
		Pods:      w, Outcome: w, Book: &holdings.Book{},
		Limiter: injection.Limiter{Containers: filepath.Join(root, "containers"), Locks: filepath.Join(root, "locks")},
		Deck:    func() *cards.Deck { return deck },
		Device:  func(uuid string) string { return "gpufabric.io/vgpu=" + uuid },
	}, w
}

func pod(name, devices string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	if devices != "" {
		p.Annotations = map[string]string{annotation.PodDevices: devices}
	}
	for _, container := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: container, Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")},
		}})
	}
	return p
}

func sandbox(p *corev1.Pod) *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox-" + p.Name, Namespace: p.Namespace, Name: p.Name, Uid: string(p.UID), Annotations: p.Annotations}
}

func container(p *corev1.Pod, name string) *api.Container {
	return &api.Container{Id: p.Name + "-" + name, PodSandboxId: "sandbox-" + p.Name, Name: name}
}

func TestCreateContainerGivesEachContainerItsOwnShare(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,20:;"+uuid+",NVIDIA,2048,0:;", "main", "side")
	h, w := setup(t, p)
	for name, memory := range map[string]string{"main": "10240m", "side": "20480m"} {
		adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, name))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(adjustment.Env, func(e *api.KeyValue) bool { return e.Key == "CUDA_DEVICE_MEMORY_LIMIT_0" && e.Value == memory }) {
			t.Errorf("container %s: environment %v has no limit of %s", name, adjustment.Env, memory)
		}
		if len(adjustment.CDIDevices) != 1 || adjustment.CDIDevices[0].Name != "gpufabric.io/vgpu="+uuid {
			t.Errorf("container %s: CDI devices %v", name, adjustment.CDIDevices)
		}
		if _, err := os.Stat(filepath.Join(h.Limiter.Containers, "uid-train_"+name)); err != nil {
			t.Errorf("container %s: %v", name, err)
		}
	}
	slices.Sort(w.served)
	if !slices.Equal(w.served, []string{"train/main", "train/side"}) {
		t.Errorf("served %v", w.served)
	}
	if use := h.Book.Use(h.Deck(), uuid); use.Units != 3072 || use.Cores != 20 {
		t.Errorf("booked %+v", use)
	}
}

func TestCreateContainerLooksAgainWhereTheCacheIsOld(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,0:;", "main")
	h, w := setup(t, p)
	w.cached["train"] = pod("train", "", "main") // from before the scheduler wrote
	if adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, "main")); err != nil || adjustment == nil {
		t.Errorf("got %v, %v", adjustment, err)
	}
	delete(w.cached, "train")
	if adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, "main")); err != nil || adjustment == nil {
		t.Errorf("without a cached pod: got %v, %v", adjustment, err)
	}
}

func TestCreateContainerLeavesOthersAlone(t *testing.T) {
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plain", UID: "uid-plain"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	h, w := setup(t, plain)
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "etcd", UID: "uid-etcd"}}
	for _, p := range []*corev1.Pod{plain, static} {
		if adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, "main")); adjustment != nil || err != nil {
			t.Errorf("%s: got %v, %v; want nothing", p.Name, adjustment, err)
		}
	}
	if len(w.served)+len(w.failed) > 0 {
		t.Errorf("served %v, failed %v", w.served, w.failed)
	}
}

func TestCreateContainerRefusesInWords(t *testing.T) {
	unplaced := pod("unplaced", "", "main")
	greedy := pod("greedy", uuid+",NVIDIA,9999,0:;", "main")
	slot := pod("slot", uuid+"[0-1],NVIDIA,100,0:;", "main")
	broken := pod("broken", "GPU,NVIDIA", "main")
	hostile := pod("hostile", uuid+",NVIDIA,1,0:;", "main")
	hostile.UID = "../../../etc"
	for _, test := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{unplaced, "schedulerName"}, {greedy, "49140 MiB are free and 99990"}, {slot, "mig.nvidia.com"}, {broken, annotation.PodDevices}, {hostile, "not a name"},
	} {
		h, w := setup(t, test.pod)
		_, _, err := h.CreateContainer(t.Context(), sandbox(test.pod), container(test.pod, "main"))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.pod.Name, err, test.want)
		}
		if len(w.failed) != 1 || h.Book.Len() != 0 {
			t.Errorf("%s: failed %v, %d booked; want the failure told and nothing booked", test.pod.Name, w.failed, h.Book.Len())
		}
	}
}

func TestSharesOfAReplacedPodAreNotGivenToItsSuccessor(t *testing.T) {
	old := pod("train", uuid+",NVIDIA,1024,0:;", "main")
	h, _ := setup(t, old)
	successor := pod("train", uuid+",NVIDIA,1024,0:;", "main")
	successor.UID = "uid-new"
	if adjustment, _, err := h.CreateContainer(t.Context(), sandbox(successor), container(successor, "main")); err == nil {
		t.Errorf("got %v for a pod whose UID nobody knows", adjustment)
	}
}

func TestSynchronizeBooksWhatRunsAndDropsWhatEnded(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,20:;", "main")
	h, _ := setup(t, p)
	made := container(p, "main")
	adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), made)
	if err != nil {
		t.Fatal(err)
	}
	made.Annotations = adjustment.Annotations

	again, _ := setup(t, p) // the plugin after a restart
	again.Limiter = h.Limiter
	if err := h.Limiter.Make(injection.Container{PodUID: "uid-ended", Name: "main"}); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Synchronize(t.Context(), []*api.PodSandbox{sandbox(p)}, []*api.Container{made}); err != nil {
		t.Fatal(err)
	}
	if use := again.Book.Use(again.Deck(), uuid); use.Units != 1024 || !again.Connected() {
		t.Errorf("after a restart %+v is booked, connected %v", use, again.Connected())
	}
	if uids, _ := again.Limiter.Pods(); !slices.Equal(uids, []string{"uid-train"}) {
		t.Errorf("directories of %v are left, want those of uid-train", uids)
	}

	if _, err := again.StopContainer(t.Context(), sandbox(p), made); err != nil || again.Book.Len() != 0 {
		t.Errorf("after the container stopped %d are booked (%v)", again.Book.Len(), err)
	}
	if err := again.RemovePodSandbox(t.Context(), sandbox(p)); err != nil {
		t.Fatal(err)
	}
	if uids, _ := again.Limiter.Pods(); len(uids) != 0 {
		t.Errorf("directories of %v are left after the pod", uids)
	}
}
