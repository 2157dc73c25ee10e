package plugin

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
	"gpufabric.io/drivers/vgpu/annotation"
)

const nodeName = "node-a"

// node is a running vgpu-plugin on a machine of two A100-40, with a fake kubelet and API server.
type node struct {
	t       *testing.T
	machine *gputest.Machine
	kubelet *kubelettest.Kubelet
	api     *fake.Clientset
	options *Options
	pods    occupancytest.Pods
	// cancel ends the role and waits for it.
	cancel func()
	// ended receives Run's result once.
	ended chan error
}

func start(t *testing.T, flags ...string) *node {
	return startOn(t, gputest.New(t, 2), &Options{}, flags...)
}

func startOn(t *testing.T, machine *gputest.Machine, options *Options, flags ...string) *node {
	n := &node{t: t, machine: machine, kubelet: kubelettest.New(t), options: options, ended: make(chan error, 1)}
	n.options.pause = time.Millisecond // the tests' handshake does not wait half a minute
	n.api = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	n.kubelet.Start()
	set := pflag.NewFlagSet("vgpu-plugin", pflag.ContinueOnError)
	n.options.Bind(set, func(string) string { return "" })
	arguments := append([]string{
		"--node-name=" + nodeName, "--driver-root=" + n.machine.Path("driver"), "--sysfs-root=" + n.machine.Path("sys"),
		"--dev-root=" + n.machine.Path("dev"),
		"--proc-devices=" + n.machine.Path("proc/devices"), "--kubelet-root=" + n.kubelet.Root(), "--cdi-root=" + t.TempDir(),
		"--state-dir=" + t.TempDir(),
		"--handover-dir=", "--nri-socket=",
	}, flags...)
	if err := set.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	if n.options.CgroupRoot == "" { // else the test has made the cgroups
		n.pods = occupancytest.New(t, n.options.Cgroups().Path)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.ended <- Run(ctx, n.options, n.machine, n.api)
	}()
	n.cancel = func() { cancel(); <-done }
	t.Cleanup(n.cancel)
	return n
}

// annotation waits until an annotation of the node satisfies want.
func (n *node) annotation(key string, want func(string) bool) {
	n.t.Helper()
	watcher, err := n.api.CoreV1().Nodes().Watch(n.t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name",
		nodeName).String()})
	if err != nil {
		n.t.Fatal(err)
	}
	defer watcher.Stop()
	got, err := n.api.CoreV1().Nodes().Get(n.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	for !want(got.Annotations[key]) {
		select {
		case event := <-watcher.ResultChan():
			if event.Type == watch.Modified {
				got = event.Object.(*corev1.Node)
			}
		case err := <-n.ended:
			n.t.Fatalf("the role ended: %v", err)
		}
	}
}

func (n *node) schedule(name, devices string, containers ...string) *corev1.Pod {
	n.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			Annotations: map[string]string{annotation.PodDevices: devices, annotation.PodPending: devices, annotation.BindPhase: "allocating"},
		},
		Spec: corev1.PodSpec{NodeName: nodeName}, Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	lists, err := annotation.ParseShares(devices)
	if err != nil {
		n.t.Fatal(err)
	}
	for i, container := range containers {
		limits := corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}
		if cores := lists[i][0].Cores; cores > 0 {
			limits["volcano.sh/vgpu-cores"] = *resource.NewQuantity(int64(cores), resource.DecimalSI)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: container,
			Resources: corev1.ResourceRequirements{Limits: limits}})
	}
	created, err := n.api.CoreV1().Pods("default").Create(n.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return created
}

// awaitPods waits until the plugin has seen every pod that was made so far: it sees them in order, and processes one more.
func (n *node) awaitPods() {
	n.t.Helper()
	devices := n.machine.GPUs[0].UUID + ",NVIDIA,1,0:" + n.machine.GPUs[1].UUID + ",NVIDIA,1,0:;"
	if _, err := n.api.CoreV1().Pods("default").Create(n.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "last", UID: "uid-last",
			Annotations: map[string]string{annotation.PodDevices: devices, annotation.PodPending: devices, annotation.BindPhase: "allocating"}},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("2")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := n.tryAllocate("volcano.sh/vgpu-number", 2)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatal(err)
		}
	}
}

// phase waits until the pod's bind phase is want.
func (n *node) phase(name, want string) *corev1.Pod {
	n.t.Helper()
	watcher, err := n.api.CoreV1().Pods("default").Watch(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	defer watcher.Stop()
	pod, err := n.api.CoreV1().Pods("default").Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	for pod.Name != name || pod.Annotations[annotation.BindPhase] != want {
		event := <-watcher.ResultChan()
		if changed, ok := event.Object.(*corev1.Pod); ok && changed.Name == name {
			pod = changed
		}
	}
	return pod
}

func TestPluginPublishesSharesToKubeletAndScheduler(t *testing.T) {
	n := start(t, "--gpu-memory-factor=10")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-cores", 200)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-memory", 2*4096)
	want := ""
	for _, gpu := range n.machine.GPUs {
		want += gpu.UUID + ",10,4096,NVIDIA-A100-SXM4-40GB,true,hami-core:"
	}
	n.annotation(annotation.NodeRegister, func(got string) bool { return got == want })
	n.annotation(unitAnnotation, func(got string) bool { return got == "1 volcano.sh/vgpu-memory = 10 MiB" })
	n.annotation(annotation.NodeHandshake, func(got string) bool { return strings.HasPrefix(got, "Reported ") })
}

func TestRegisterAnswersTheSchedulersHandshake(t *testing.T) {
	n := start(t)
	n.annotation(annotation.NodeHandshake, func(got string) bool { return strings.HasPrefix(got, "Reported ") })
	n.ask()
	n.annotation(annotation.NodeHandshake, func(got string) bool { return strings.HasPrefix(got, "Reported ") })
}

func TestPluginDoesNotWriteWithoutChange(t *testing.T) {
	n := start(t)
	n.annotation(annotation.NodeHandshake, func(got string) bool { return strings.HasPrefix(got, "Reported ") })
	n.annotation(annotation.NodeRegister, func(got string) bool { return got != "" })
	patches := func() (count int) {
		for _, action := range n.api.Actions() {
			if patch, ok := action.(clienttesting.PatchAction); ok && action.Matches("patch", "nodes") &&
				!strings.Contains(string(patch.GetPatch()), "heartbeat") {
				count++
			}
		}
		return count
	}
	before := patches()
	for _, beat := range []string{"1", "2"} {
		patch := []byte(`{"metadata":{"labels":{"heartbeat":"` + beat + `"}}}`)
		if _, err := n.api.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// A question is answered after earlier changes: its answer is the only write.
	n.ask()
	n.annotation(annotation.NodeHandshake, func(got string) bool { return strings.HasPrefix(got, "Reported ") })
	if after := patches(); after != before+1 {
		t.Errorf("%d patches of the node, %d before; want the answer alone", after, before)
	}
}

// ask does the scheduler's handshake for the node.
func (n *node) ask() {
	n.t.Helper()
	patch := []byte(`{"metadata":{"labels":{"heartbeat":"asked"},"annotations":{"` + annotation.NodeHandshake +
		`":"Requesting_2026.11.21 02:20:00"}}}`)
	if _, err := n.api.CoreV1().Nodes().Patch(n.t.Context(), nodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func TestMemoryThatIsPromisedTwiceMayComeFromTheHost(t *testing.T) {
	n := start(t, "--gpu-memory-factor=10", "--device-memory-scaling=2")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-memory", 2*8192)
	n.schedule("train", n.machine.GPUs[0].UUID+",NVIDIA,8192,0:;", "main")
	if _, response := n.allocate("volcano.sh/vgpu-number", 1); response.Envs["CUDA_OVERSUBSCRIBE"] != "true" ||
		response.Envs["CUDA_DEVICE_MEMORY_LIMIT_0"] != "81920m" {
		t.Errorf("environment %v, want a limit of 81920m, to which HAMi-core lets it go beyond the GPU's 40960", response.Envs)
	}
}

func TestAllocateWithoutNRIServesAnUnambiguousPod(t *testing.T) {
	n := start(t, "--gpu-memory-factor=10")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	uuid := n.machine.GPUs[1].UUID
	n.schedule("train", uuid+",NVIDIA,1024,50:;", "main")
	n.awaitPods() // the kubelet is steered to IDs of the GPU only once the plugin has seen the pod
	ids, response := n.allocate("volcano.sh/vgpu-number", 1)
	if !strings.HasPrefix(ids[0], uuid) {
		t.Errorf("the kubelet was steered to %s, want an id of %s", ids[0], uuid)
	}
	if response.Envs["CUDA_DEVICE_MEMORY_LIMIT_0"] != "10240m" || response.Envs["CUDA_DEVICE_SM_LIMIT"] != "50" {
		t.Errorf("environment %v", response.Envs)
	}
	if len(response.CdiDevices) != 1 || !strings.HasSuffix(response.CdiDevices[0].Name, uuid) {
		t.Errorf("CDI devices %v", response.CdiDevices)
	}
	entries, err := os.ReadDir(n.options.CDIRoot)
	if err != nil || len(entries) != 1 {
		t.Errorf("CDI specs %v (%v), want one", entries, err)
	}
	pod := n.phase("train", annotation.BindSuccess)
	if pod.Annotations[annotation.PodPending] != "" || pod.Annotations[annotation.PodDevices] == "" {
		t.Errorf("annotations %v, want the devices kept and nothing pending", pod.Annotations)
	}
}

func TestPluginFreesTheShareOfAnEndedPod(t *testing.T) {
	n := start(t, "--gpu-memory-factor=10")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	whole := n.machine.GPUs[0].UUID + ",NVIDIA,4096,0:;"
	pod := n.schedule("first", whole, "main")
	n.allocate("volcano.sh/vgpu-number", 1)
	n.phase("first", annotation.BindSuccess)
	pod.Status.Phase = corev1.PodRunning
	if _, err := n.api.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	directories := func() []string {
		found, _ := filepath.Glob(filepath.Join(n.options.StateDir, "containers", "*"))
		return found
	}
	if got := directories(); len(got) != 1 {
		t.Errorf("accounting directories %v, want the pod's", got)
	}
	n.schedule("second", whole, "main")
	if _, err := n.tryAllocate("volcano.sh/vgpu-number", 1); err == nil || !strings.Contains(err.Error(), "held by default/first") {
		t.Fatalf("got %v, want a refusal that names the holder", err)
	}
	n.phase("second", annotation.BindFailed)
	if err := n.api.CoreV1().Pods("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := n.api.CoreV1().Pods("default").Delete(t.Context(), "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	third := n.schedule("third", whole, "main")
	n.allocate("volcano.sh/vgpu-number", 1)
	third.Status.Phase = corev1.PodSucceeded
	if _, err := n.api.CoreV1().Pods("default").UpdateStatus(t.Context(), third, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// This happens in the background.
	for deadline := time.Now().Add(time.Minute); slices.ContainsFunc(directories(),
		func(path string) bool { return !strings.Contains(path, "uid-first") }); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("accounting directories %v are left of a pod that has ended", directories())
		}
	}
}

func TestAllocateWithoutNRICountsInitContainersOnce(t *testing.T) {
	n := start(t, "--gpu-memory-factor=10")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	first, second := n.machine.GPUs[0].UUID+",NVIDIA,4096,0:", n.machine.GPUs[1].UUID+",NVIDIA,4096,0:"
	asks := func(name string, count string) corev1.Container {
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse(count)}}}
	}
	devices := first + second + ";" + first + ";"
	if _, err := n.api.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "uid-train",
			Annotations: map[string]string{annotation.PodDevices: devices, annotation.PodPending: devices, annotation.BindPhase: "allocating"}},
		Spec: corev1.PodSpec{NodeName: nodeName, InitContainers: []corev1.Container{asks("warm", "2")},
			Containers: []corev1.Container{asks("main", "1")}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.allocate("volcano.sh/vgpu-number", 2)
	n.allocate("volcano.sh/vgpu-number", 1)
	n.phase("train", annotation.BindSuccess)
	n.schedule("other", second+";", "main")
	if _, err := n.tryAllocate("volcano.sh/vgpu-number", 1); err == nil ||
		!strings.Contains(err.Error(), "held by default/train, container warm") {
		t.Errorf("got %v, want a refusal that names the init container, which may be started again", err)
	}
}

func TestAllocateWithoutNRIRejectsAnAmbiguousPod(t *testing.T) {
	n := start(t)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	for _, name := range []string{"first", "second"} {
		n.schedule(name, n.machine.GPUs[0].UUID+",NVIDIA,1024,0:;", "main")
	}
	n.awaitPods()
	_, err := n.tryAllocate("volcano.sh/vgpu-number", 1)
	for _, part := range []string{"default/first", "default/second", "NRI"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want an error with %q", err, part)
		}
	}
}

func TestAllocateWaitsForAConfiguredRuntime(t *testing.T) {
	n := start(t, "--nri-socket="+t.TempDir()+"/nri.sock")
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	n.schedule("train", n.machine.GPUs[0].UUID+",NVIDIA,1024,0:;", "main")
	if _, err := n.tryAllocate("volcano.sh/vgpu-number", 1); err == nil || !strings.Contains(err.Error(), "--nri-socket") {
		t.Errorf("got %v, want a refusal that names the flag", err)
	}
}

func TestGPUsAreSharedOnlyAfterTheyAreTaintedInDRA(t *testing.T) {
	directory := handover.Directory(t.TempDir())
	n := start(t, "--handover-dir="+string(directory))
	changes, err := directory.Watch(t.Context(), &filewatch.Watcher{})
	if err != nil {
		t.Fatal(err)
	}
	var uuids []string
	for _, gpu := range n.machine.GPUs {
		uuids = append(uuids, gpu.UUID)
	}
	for ended := 0; ended < len(uuids); {
		requests, err := directory.Requests()
		if err != nil {
			t.Fatal(err)
		}
		if ended = len(requests); ended < len(uuids) {
			<-changes
		}
	}
	if view := n.kubelet.View("volcano.sh/vgpu-number"); view.Registrations > 0 {
		t.Fatal("registered with the kubelet before the GPUs were tainted")
	}
	if err := directory.Confirm(uuids...); err != nil {
		t.Fatal(err)
	}
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
}

func TestWrongFlagsAreNamed(t *testing.T) {
	for flag, part := range map[string]string{
		"--mig-strategy=mixed":           "mig.nvidia.com",
		"--device-list-strategy=volumes": "--device-list-strategy",
		"--device-split-count=-1":        "deviceSplitCount: -1",
		"--device-memory-scaling=0":      "deviceMemoryScaling: 0",
		"--state-dir=relative":           "--state-dir",
	} {
		n := start(t, flag)
		if err := <-n.ended; err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v, want an error with %q", flag, err, part)
		}
	}
}

func (n *node) allocate(name string, count int) ([]string, *pluginapi.ContainerAllocateResponse) {
	n.t.Helper()
	ids, got, err := n.kubelet.Allocate(n.t.Context(), name, count)
	if err != nil {
		n.t.Fatal(err)
	}
	return ids, got
}

func (n *node) tryAllocate(name string, count int) ([]string, error) {
	ids, _, err := n.kubelet.Allocate(n.t.Context(), name, count)
	slices.Sort(ids)
	return ids, err
}
