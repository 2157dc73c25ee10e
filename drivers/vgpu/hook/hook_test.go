package hook

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/instances"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

// world is a node with one card of 49140 MiB, as the hook sees it.
type world struct {
	cached, fresh  map[string]*corev1.Pod
	served, failed []string
	by             []injection.Backend // of those served
	partitioned    []string
	// away is an API server that does not answer.
	away bool
}

func (w *world) Pod(ctx context.Context, namespace, name, uid string, fresh bool) (*corev1.Pod, error) {
	if fresh && w.away {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	from := w.cached
	if fresh {
		from = w.fresh
	}
	if pod := from[name]; pod != nil && string(pod.UID) == uid {
		return pod, nil
	}
	return nil, errors.New("pod " + namespace + "/" + name + " of UID " + uid + " is not there")
}

func (w *world) Served(pod *corev1.Pod, container string, by injection.Backend) {
	w.by = append(w.by, by)
	w.served = append(w.served, pod.Name+"/"+container)
}
func (w *world) Failed(pod *corev1.Pod, container string, _ error) {
	w.failed = append(w.failed, pod.Name+"/"+container)
}

func (w *world) Partitioned(pod *corev1.Pod, container string, given []instances.Instance) {
	w.partitioned = append(w.partitioned, pod.Name+"/"+container+" "+given[0].Profile)
}

// instance makes the same kind of MIG instance for everybody.
type instance struct{ ended []string }

func (i *instance) Give(_ context.Context, _ instances.Owner, asks []instances.Ask) ([]instances.Instance, error) {
	var out []instances.Instance
	for range asks {
		out = append(out, instances.Instance{GPU: uuid, UUID: "MIG-1", Profile: "1g.5gb", MemoryMiB: 4864, ID: 7})
	}
	return out, nil
}

func (i *instance) End(podUID string)    { i.ended = append(i.ended, podUID) }
func (i *instance) Keep(map[string]bool) {}

// unlimited is a driver without limits.
type unlimited struct{ Memory }

func (unlimited) Release(context.Context, string) error { return nil }
func (unlimited) Keep(context.Context, map[string]bool) {}

func setup(t *testing.T, pods ...*corev1.Pod) (*Hook, *world) {
	w := &world{cached: map[string]*corev1.Pod{}, fresh: map[string]*corev1.Pod{}}
	for _, pod := range pods {
		w.cached[pod.Name], w.fresh[pod.Name] = pod, pod
	}
	gpus := &sharedgpus.Set{Factor: 10, Cards: []sharedgpus.Card{{GPU: &inventory.GPU{UUID: uuid}, Slots: 10, Units: 4914, Cores: 100,
		Healthy: true}}}
	root := t.TempDir()
	return &Hook{
		Resources: annotation.Resources{Number: "volcano.sh/vgpu-number", Memory: "volcano.sh/vgpu-memory", Cores: "volcano.sh/vgpu-cores"},
		Pods:      w, Outcome: w, Book: &holdings.Book{},
		Limiter: injection.Limiter{Containers: filepath.Join(root, "containers"), Locks: filepath.Join(root, "locks"),
			Accounts: filepath.Join(root, "accounts")},
		SharedGPUs: func() *sharedgpus.Set { return gpus },
		Device:     func(uuid string) string { return "gpufabric.io/vgpu=" + uuid },

		Memory: unlimited{}, Instances: &instance{},
		Capabilities: func(_ *inventory.GPU, i instances.Instance) ([]*specs.DeviceNode, error) {
			return []*specs.DeviceNode{{Path: fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", i.ID), Type: "c", Major: 238, Minor: int64(i.ID)}}, nil
		},
	}, w
}

func pod(name, devices string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	if devices != "" {
		p.Annotations = map[string]string{annotation.PodDevices: devices}
	}
	lists, _ := annotation.ParseShares(devices) // one test has lists that cannot be read
	for i, container := range containers {
		limits := corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}
		if i < len(lists) && len(lists[i]) > 0 && lists[i][0].Cores > 0 {
			limits["volcano.sh/vgpu-cores"] = *resource.NewQuantity(int64(lists[i][0].Cores), resource.DecimalSI)
		}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: container, Resources: corev1.ResourceRequirements{Limits: limits}})
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
		if !slices.ContainsFunc(adjustment.Env, func(e *api.KeyValue) bool {
			return e.Key == "CUDA_DEVICE_MEMORY_LIMIT_0" &&
				e.Value == memory
		}) {
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
	if use := h.Book.Use(h.SharedGPUs(), uuid); use.Units != 3072 || use.Cores != 20 {
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

func TestHookAnswersInTimeWithoutTheAPIServer(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,0:;", "main")
	h, w := setup(t, p)
	delete(w.cached, "train")
	w.away = true
	synctest.Test(t, func(t *testing.T) {
		asked := time.Now()
		if _, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, "main")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a refusal", err)
		}
		if took := time.Since(asked); took >= 2*time.Second {
			t.Errorf("it took %v; after two seconds the runtime makes the container without its share", took)
		}
	})
}

func TestCreateContainerDoesNotChangeOthers(t *testing.T) {
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plain", UID: "uid-plain"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
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
		{unplaced, "schedulerName"}, {greedy, "49140 MiB are free and 99990"}, {slot, "not shared in mode mig"}, {broken, annotation.PodDevices},
		{hostile, "not a valid Kubernetes name"},
	} {
		h, w := setup(t, test.pod)
		_, _, err := h.CreateContainer(t.Context(), sandbox(test.pod), container(test.pod, "main"))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.pod.Name, err, test.want)
		}
		if len(w.failed) != 1 || h.Book.Len() != 0 {
			t.Errorf("%s: failed %v, %d booked; want the failure reported and nothing booked", test.pod.Name, w.failed, h.Book.Len())
		}
	}
}

// The device of an allocation mounts a file that does not exist, and only the hook removes that mount.
func TestHookRemovesTheMountThatBlocksContainers(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,100,0:;", "main")
	h, _ := setup(t, p)
	directory := t.TempDir()
	mounts := UnsharedEdits(directory).Mounts
	if len(mounts) != 1 || filepath.Dir(mounts[0].HostPath) != directory {
		t.Fatalf("the device mounts %+v", mounts)
	}
	if _, err := os.Lstat(mounts[0].HostPath); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what it mounts is there: %v", err)
	}
	adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, "main"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(adjustment.Mounts, func(m *api.Mount) bool {
		path, removed := api.IsMarkedForRemoval(m.Destination)
		return removed && path == mounts[0].ContainerPath
	}) {
		t.Errorf("the hook leaves the mount in place: %v", adjustment.Mounts)
	}
}

func TestHookGivesAMIGInstanceAndNoLimiter(t *testing.T) {
	p := pod("train", uuid+"[0-1],NVIDIA,300,0:;", "main")
	h, w := setup(t, p)
	h.SharedGPUs().Cards[0].Mode = annotation.ModeMIG
	adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, "main"))
	if err != nil {
		t.Fatal(err)
	}
	if len(adjustment.Env) != 1 || adjustment.Env[0].Value != "MIG-1" || len(adjustment.Mounts) != 1 {
		t.Errorf("environment %v, mounts %v; want the instance and no limiter", adjustment.Env, adjustment.Mounts)
	}
	if devices := adjustment.Linux.Devices; len(devices) != 1 || devices[0].Path != "/dev/nvidia-caps/nvidia-cap7" || devices[0].Minor != 7 {
		t.Errorf("devices %v, want the instance's capability", devices)
	}
	if !slices.Equal(w.partitioned, []string{"train/main 1g.5gb"}) {
		t.Errorf("reported %v", w.partitioned)
	}
	if use := h.Book.Use(h.SharedGPUs(), uuid); use.Units != 486 {
		t.Errorf("booked %+v, want what the instance has", use)
	}
}

func TestHookKeepsSharesForASecondSandbox(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,0:;", "main")
	h, _ := setup(t, p)
	first, second := sandbox(p), sandbox(p)
	second.Id = "sandbox-2"
	for _, s := range []*api.PodSandbox{first, second} {
		if err := h.RunPodSandbox(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := h.CreateContainer(t.Context(), second, container(p, "main")); err != nil {
		t.Fatal(err)
	}
	if err := h.RemovePodSandbox(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if uids, _ := h.Limiter.Pods(); len(uids) != 1 {
		t.Errorf("directories of %v, want the pod's", uids)
	}
	if err := h.RemovePodSandbox(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if uids, _ := h.Limiter.Pods(); len(uids) != 0 {
		t.Errorf("directories of %v are left", uids)
	}
	if ended := h.Instances.(*instance).ended; !slices.Equal(ended, []string{string(p.UID)}) {
		t.Errorf("ended %v, want the pod once", ended)
	}
}

func TestHookRejectsADisabledLimiter(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,30:;", "main")
	for _, test := range []struct {
		variable    string
		noCoreLimit bool // by the administrator
		refused     bool
	}{
		{"CUDA_DISABLE_CONTROL=true", false, true},
		{"CUDA_DISABLE_CONTROL=true", true, true},
		{"CUDA_DISABLE_CONTROL=false", false, false},
		{"GPU_CORE_UTILIZATION_POLICY=disable", false, true},
		{"GPU_CORE_UTILIZATION_POLICY=DISABLE", false, true},
		{"GPU_CORE_UTILIZATION_POLICY=disable", true, false},
		{"GPU_CORE_UTILIZATION_POLICY=force", false, false},
		{"GPU_CORE_UTILIZATION_POLICY=default", false, false},
		{"CUDA_TASK_PRIORITY=0", false, true},
		{"CUDA_TASK_PRIORITY=1", false, false},
		{"OTHER=true", false, false},
	} {
		h, _ := setup(t, p)
		h.ForbidControlOff, h.NoCoreLimit = true, test.noCoreLimit
		made := container(p, "main")
		made.Env = []string{test.variable}
		_, _, err := h.CreateContainer(t.Context(), sandbox(p), made)
		if name, _, _ := strings.Cut(test.variable, "="); (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: got %v", test, err)
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

func TestSynchronizeKeepsSharesOfRunningContainersOnly(t *testing.T) {
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
	if err := h.Limiter.Make(injection.Container{PodUID: "uid-ended", Name: "main"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Synchronize(t.Context(), []*api.PodSandbox{sandbox(p)}, []*api.Container{made}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.Outcome.(*world).served, []string{"train/main"}) {
		t.Errorf("reported %v, want what runs: the plugin may have died before it reported it", again.Outcome.(*world).served)
	}
	if use := again.Book.Use(again.SharedGPUs(), uuid); use.Units != 1024 || !again.Connected() {
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

// If a directory cannot be removed, or its removal takes long, pods must still get their shares: the runtime drops a plugin that
// fails or takes two seconds.
func TestHookDoesNotWaitForDirectories(t *testing.T) {
	h, _ := setup(t)
	if err := os.WriteFile(h.Limiter.Containers, nil, 0o600); err != nil { // not even a directory
		t.Fatal(err)
	}
	if _, err := h.Synchronize(t.Context(), nil, nil); err != nil || !h.Connected() {
		t.Errorf("got %v, connected %t; want the plugin at work", err, h.Connected())
	}
	if err := os.Remove(h.Limiter.Containers); err != nil {
		t.Fatal(err)
	}
	p := pod("train", "")
	if err := h.Limiter.Make(injection.Container{PodUID: string(p.UID), Name: "main"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.Limiter.Containers, "uid-train_main", "giant"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.RemovePodSandbox(t.Context(), sandbox(p)); err != nil {
		t.Fatal(err)
	}
	left := func() []string {
		found, _ := filepath.Glob(filepath.Join(h.Limiter.Containers, "*", "giant"))
		return found
	}
	if uids, _ := h.Limiter.Pods(); len(uids) != 0 || len(left()) != 1 {
		t.Errorf("directories of %v, files %v; want none, and the file put aside while nobody removes it", uids, left())
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h.once = sync.Once{} // a channel of the bubble's own
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx) }()
		synctest.Wait()
		if len(left()) != 0 {
			t.Errorf("%v is left", left())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Otherwise a tenant who may write a pod's annotations could give a running container more, or another GPU, at its next start.
func TestHookGivesARestartedContainerItsShares(t *testing.T) {
	p := pod("train", uuid+",NVIDIA,1024,20:;", "main")
	h, w := setup(t, p)
	memory := func(h *Hook) string {
		t.Helper()
		adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), container(p, "main"))
		if err != nil {
			t.Fatal(err)
		}
		for _, env := range adjustment.Env {
			if env.Key == "CUDA_DEVICE_MEMORY_LIMIT_0" {
				return env.Value
			}
		}
		return ""
	}
	ended := container(p, "main")
	adjustment, _, err := h.CreateContainer(t.Context(), sandbox(p), ended)
	if err != nil {
		t.Fatal(err)
	}
	ended.Annotations, ended.State = adjustment.Annotations, api.ContainerState_CONTAINER_STOPPED
	changed := p.DeepCopy()
	changed.Annotations[annotation.PodDevices] = uuid + ",NVIDIA,2048,20:;"
	w.cached["train"], w.fresh["train"] = changed, changed
	if got := memory(h); got != "10240m" {
		t.Errorf("started again it has %s, want what it first had", got)
	}
	again, _ := setup(t, changed) // the plugin after a restart: the runtime has the container's last run
	if _, err := again.Synchronize(t.Context(), []*api.PodSandbox{sandbox(p)}, []*api.Container{ended}); err != nil {
		t.Fatal(err)
	}
	if got := memory(again); got != "10240m" {
		t.Errorf("after a restart of the plugin it has %s, want what it first had", got)
	}
	if err := again.RemovePodSandbox(t.Context(), sandbox(p)); err != nil {
		t.Fatal(err)
	}
	if got := again.first.of("uid-train", "main", 10); got != nil {
		t.Errorf("%v is remembered of a pod that is gone", got)
	}
}
