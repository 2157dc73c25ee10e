package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/simcluster/cluster"
)

// patience bounds each wait on a loaded machine.
const patience = 5 * time.Minute

const gpuResource = "nvidia.com/gpu"

// running is a simulated cluster that `up` brought up.
type running struct {
	t      *testing.T
	dir    string
	client kubernetes.Interface
}

func bringUp(t *testing.T, args ...string) running {
	t.Helper()
	r := running{t: t, dir: newDir(t)}
	r.do(append([]string{"up"}, args...)...)
	client, _, err := clients(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	r.client = client
	return r
}

// do runs a command of simcluster to its end.
func (r running) do(args ...string) string {
	r.t.Helper()
	cmd, said := simcluster(r.t.Context(), r.dir, args...)
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("simcluster %v: %v: %s", args, err, said)
	}
	return said.String()
}

// run starts `run` with its arguments, and ends it with the test.
func (r running) run(args ...string) {
	r.t.Helper()
	cmd, said := simcluster(context.WithoutCancel(r.t.Context()), r.dir) // the test's context ends before its cleanup
	cmd.Args = append([]string{cmd.Args[0], "run", "--dir", r.dir}, args...)
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		if err := cmd.Wait(); err != nil || r.t.Failed() {
			r.t.Errorf("simcluster run %v: %v: %s", args, err, said)
		}
	})
}

func (r running) pod(name, scheduler string, change func(*corev1.PodSpec)) {
	r.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{SchedulerName: scheduler,
		TerminationGracePeriodSeconds: ptr.To(int64(0)), Containers: []corev1.Container{{Name: "main", Image: "ubuntu"}}}}
	change(&pod.Spec)
	if _, err := r.client.CoreV1().Pods("default").Create(r.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// await returns the node of a pod that runs.
func (r running) await(name string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	if err := cluster.AwaitPodStarted(ctx, r.client, "default", name); err != nil {
		r.t.Fatal(err)
	}
	pod, err := r.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod.Spec.NodeName
}

// claim makes a claim of a GPU, as a selector of its attributes if that is not empty.
func (r running) claim(name, selector string) {
	r.t.Helper()
	request := resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com"}
	if selector != "" {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &request}}}}}
	if _, err := r.client.ResourceV1().ResourceClaims("default").Create(r.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func withClaim(name string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
		spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
}

func TestRunLetsAnotherSchedulerUseNodesThatComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("brings a cluster up, for about a minute; -short does not")
	}
	programs, err := toolchain.Ensure(t.Context(), "kube-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	r := bringUp(t, "--nodes=2", "--profile=h100-hgx", "--slices=nvidia", "--extended")
	config := filepath.Join(r.dir, "theirs.yaml")
	if err := os.WriteFile(config, []byte(fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %s/kubeconfig}
profiles: [{schedulerName: theirs}]
`, r.dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.run("--", programs["kube-scheduler"], "--config="+config, "--secure-port=0", "--authentication-kubeconfig={kubeconfig}",
		"--authorization-kubeconfig={kubeconfig}")

	eight := func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Limits = corev1.ResourceList{gpuResource: resource.MustParse("8")}
	}
	r.pod("first", "theirs", eight)
	r.pod("second", "theirs", eight)
	if a, b := r.await("first"), r.await("second"); a == b {
		t.Errorf("two pods with eight GPUs each are both on %s", a)
	}
	r.claim("h100", "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'")
	r.pod("claims", "theirs", withClaim("h100"))
	r.await("claims")

	// A machine of another kind comes, for which a pod waits, and goes.
	r.pod("waits", "theirs", func(spec *corev1.PodSpec) {
		eight(spec)
		spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": "NVIDIA-L40S"}
	})
	if said := r.do("add", "--profile=l40s-8"); !strings.Contains(said, "node-0002") {
		t.Errorf("add prints %q; want the node's name", said)
	}
	if node := r.await("waits"); node != "node-0002" {
		t.Errorf("the pod for an L40S runs on %s", node)
	}
	r.deleteNode("node-0002")
	if said := r.do("add"); !strings.Contains(said, "node-0003") {
		t.Errorf("add prints %q; want a number that no other node had", said)
	}
}

// deleteNode deletes a Node object and waits until its ResourceSlices and its files are gone. The object does not come back.
func (r running) deleteNode(name string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	if err := r.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	slices := r.client.ResourceV1().ResourceSlices()
	for { // files have no event
		left, err := slices.List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + name})
		if err != nil {
			r.t.Fatal(err)
		}
		index, err := cluster.NodeIndex(name)
		if err != nil {
			r.t.Fatal(err)
		}
		_, file := os.Stat(cluster.NodeDir(r.dir, index))
		if len(left.Items) == 0 && os.IsNotExist(file) {
			break
		}
		select {
		case <-ctx.Done():
			r.t.Fatalf("of the deleted node are left: %d slices, its files: %v", len(left.Items), file)
		case <-time.After(200 * time.Millisecond):
		}
	}
	if _, err := r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		r.t.Errorf("%s is there again: %v", name, err)
	}
}

func TestRunStartsAPluginOnEachNode(t *testing.T) {
	if testing.Short() {
		t.Skip("brings a cluster up, for about a minute; -short does not")
	}
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "bin/gpufabric-node")); err != nil {
		t.Skip("nodes with C libraries need the programs of make build: run it")
	}
	programs, err := toolchain.Ensure(t.Context(), "gpu-kubelet-plugin")
	if err != nil {
		t.Fatal(err)
	}
	r := bringUp(t, "--nodes=1", "--profile=h100-hgx", "--containers=processes", "--nvidia-plugins")
	// NVIDIA's plugin of its DRA driver 0.5.
	r.run("--each-node", "--", programs["gpu-kubelet-plugin"], "--node-name={node}", "--namespace=default", "--cdi-root={cdi}",
		"--nvidia-driver-root={hardware}/driver", "--container-driver-root={hardware}/driver", "--nvidia-cdi-hook-path=/bin/true",
		"--image-name=none", "--kubelet-registrar-directory-path={kubelet}/plugins_registry",
		"--kubelet-plugins-directory-path={kubelet}/plugins", "--kubeconfig={kubeconfig}")
	r.awaitSlices("node-0000")
	r.do("add")
	r.awaitSlices("node-0001")
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'gpu.nvidia.com'"}}}}}
	if _, err := r.client.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.claim("gpu", "")
	r.pod("claims", "", withClaim("gpu"))
	r.await("claims")
	if said := r.do("devices", "claims"); len(regexp.MustCompile(`/dev/nvidia\d+ `).FindAllString(said, -1)) != 1 {
		t.Errorf("the pod received other devices than one GPU: %s", said)
	}
}

// awaitSlices waits until a node has ResourceSlices of gpu.nvidia.com.
func (r running) awaitSlices(node string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	list := cache.NewListWatchFromClient(r.client.ResourceV1().RESTClient(), "resourceslices", metav1.NamespaceAll,
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, node))
	if _, err := watchtools.UntilWithSync(ctx, list, &resourceapi.ResourceSlice{}, nil, func(event watch.Event) (bool, error) {
		slice, ok := event.Object.(*resourceapi.ResourceSlice)
		return ok && event.Type != watch.Deleted && len(slice.Spec.Devices) > 0, nil
	}); err != nil {
		logs, _ := filepath.Glob(filepath.Join(r.dir, "logs/gpu-kubelet-plugin-"+node+".log"))
		for _, log := range logs {
			content, _ := os.ReadFile(log)
			r.t.Log(string(content))
		}
		r.t.Fatalf("wait for the plugin's slices of %s: %v", node, err)
	}
}

func TestRunRefusesMistakes(t *testing.T) {
	dir := newDir(t)
	run := func(args ...string) string {
		t.Helper()
		cmd, said := simcluster(t.Context(), dir)
		cmd.Args = append([]string{cmd.Args[0]}, args...)
		if err := cmd.Run(); err == nil {
			t.Errorf("%v: no error: %s", args, said)
		}
		return said.String()
	}
	for _, args := range [][]string{{"run", "--dir", dir, "--", "true"}, {"add", "--dir", dir}} {
		if said := run(args...); !strings.Contains(said, "no simulated cluster") || !strings.Contains(said, "simcluster up") {
			t.Errorf("%v without a cluster prints %q", args, said)
		}
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"slices of an unknown driver":   {[]string{"up", "--slices=amd"}, `"amd": allowed are gpufabric and nvidia`},
		"slices of undescribed nodes":   {[]string{"up", "--slices=nvidia", "--features=false"}, "need --features"},
		"a negative number of nodes":    {[]string{"add", "--nodes=-1"}, "--nodes -1"},
		"a profile that does not exist": {[]string{"up", "--profile=gb400"}, "gb400"},
	} {
		if said := run(append(c.args, "--dir", dir)...); !strings.Contains(said, c.want) {
			t.Errorf("%s prints %q; want %q in it", name, said, c.want)
		}
	}
	nothingLeft(t, dir)
}
