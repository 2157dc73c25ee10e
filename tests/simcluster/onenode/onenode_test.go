package onenode

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/toolchain"
	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/tests/simcluster/chart"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	driver = "gpu.nvidia.com"
	// nodes have gpus GPUs each, by profile gb200-nvl72.
	nodes, gpus = 4, 4
)

// gpuNode is the device node of a whole GPU.
var gpuNode = regexp.MustCompile(`^/dev/nvidia\d+$`)

// TestNodeMovesFromNVIDIAsDriverAndBackBesideHeldClaims starts with NVIDIA's driver on every node and a pod for each GPU, moves two nodes
// to gpufabric, and then a third one over and back.
func TestNodeMovesFromNVIDIAsDriverAndBackBesideHeldClaims(t *testing.T) {
	p := readPage(t)
	theirs := nvidiaChart(t)
	programs, err := toolchain.Ensure(t.Context(), "gpu-kubelet-plugin")
	if err != nil {
		t.Fatal(err)
	}
	up, err := fixture.Up(t.Context(), fixture.Options{
		Nodes: nodes, Mode: fabric.AsProcesses, NVIDIA: programs["gpu-kubelet-plugin"], Values: p.values(t, "nodePlugins:"),
		Before: func(ctx context.Context, c *cluster.Cluster) error {
			if err := labelNodes(ctx, c.Client); err != nil {
				return err
			}
			if err := chart.Install(ctx, c.Config, theirs); err != nil {
				return err
			}
			return cluster.AwaitSlices(ctx, c.Client, driver, nodes)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := up.Err(); err != nil {
			t.Errorf("the cluster did not last: %v", err)
		}
		up.Down()
	})
	g := &ground{Namespace: up.Namespace(t), t: t, shell: newShell(t, up.Plane.Kubeconfig()), page: p}
	for i := range nodes {
		g.awaitPool(i, false)
	}
	g.workload()
	g.awaitServed("NVIDIA's driver on each node")
	g.mistake(3)

	// As `helm upgrade` with the page's values would: every pod of the plugin is replaced.
	before := g.pods()
	maps.Copy(theirs.Values["kubeletPlugin"].(map[string]any), p.values(t, "kubeletPlugin:")["kubeletPlugin"].(map[string]any))
	if err := chart.Install(t.Context(), up.Config, theirs); err != nil {
		t.Fatal(err)
	}
	g.awaitRollout(theirs.Namespace)
	g.assertUntouched(before, "NVIDIA's driver stays off gpufabric's nodes")

	g.move(2, true)
	g.mistakeOfTheirs(up.Config, theirs, 2)
	g.move(3, true)
	g.move(moved, true)
	g.move(moved, false)
	g.move(moved, true)
}

// moved is the node that goes there and back. A pod with a claim that is kept by name has to run on it.
const moved = 1

// nvidiaChart is the chart of NVIDIA's DRA driver, with its GPU plugin alone.
func nvidiaChart(t *testing.T) chart.Options {
	t.Helper()
	module, err := toolchain.ModuleDirectory(t.Context(), "gpu-kubelet-plugin")
	if err != nil {
		t.Fatal(err)
	}
	return chart.Options{
		Chart: filepath.Join(module, "deployments/helm/dra-driver-nvidia-gpu"), Name: "nvidia-dra-driver-gpu", Namespace: "nvidia-dra-driver-gpu",
		Values: map[string]any{
			"nvidiaDriverRoot": fabric.FakeRoot + "/driver", "nvidiaCDIHookPath": "/bin/true", "gpuResourcesEnabledOverride": true,
			"resources": map[string]any{"computeDomains": map[string]any{"enabled": false}},
			// Plugins of several nodes share this machine's ports, and simulated nodes make no probes by gRPC.
			"kubeletPlugin": map[string]any{
				"metrics":    map[string]any{"enabled": false},
				"containers": map[string]any{"gpus": map[string]any{"healthcheckPort": -1}},
			},
		},
	}
}

// labelNodes labels the nodes as GPU feature discovery does.
func labelNodes(ctx context.Context, client kubernetes.Interface) error {
	for i := range nodes {
		if _, err := client.CoreV1().Nodes().Patch(ctx, cluster.NodeName(i), types.MergePatchType,
			[]byte(`{"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}`), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("label %s: %w", cluster.NodeName(i), err)
		}
	}
	return nil
}

// ground is the test's namespace, and which nodes gpufabric has.
type ground struct {
	*fixture.Namespace
	t     *testing.T
	shell shell
	page  page
	ours  [nodes]bool
}

// workload makes a pod for each GPU of the cluster. One has a claim that is kept by name, on the node that moves.
func (g *ground) workload() {
	g.t.Helper()
	g.Template("gpu", driver, "")
	g.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: kept}
spec: {devices: {requests: [{name: device, exactly: {deviceClassName: gpu.nvidia.com}}]}}
`)
	g.t.Cleanup(func() { // before the namespace's pods, which would be made again
		ctx := context.WithoutCancel(g.t.Context())
		if err := g.Client.AppsV1().Deployments(g.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			g.t.Errorf("remove the Deployments: %v", err)
		}
	})
	g.deployment("kept", 1, "kubernetes.io/hostname: "+cluster.NodeName(moved), "resourceClaimName: kept")
	g.deployment("work", nodes*gpus-1, "", "resourceClaimTemplateName: gpu")
}

func (g *ground) deployment(name string, replicas int, selector, claim string) {
	g.t.Helper()
	g.Apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {%[3]s}
      containers: [{name: main, image: "ubuntu:22.04", resources: {claims: [{name: gpu}]}}]
      resourceClaims: [{name: gpu, %[4]s}]
`, name, replicas, selector, claim)
}

// awaitRollout waits until every pod of NVIDIA's plugin is of the chart's last change.
func (g *ground) awaitRollout(namespace string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(g.Client.AppsV1().RESTClient(), "daemonsets", namespace, fields.Everything())
	var last appsv1.DaemonSetStatus
	if _, err := watchtools.UntilWithSync(ctx, list, &appsv1.DaemonSet{}, nil, func(event watch.Event) (bool, error) {
		set, ok := event.Object.(*appsv1.DaemonSet)
		if !ok {
			return false, nil
		}
		last = set.Status
		return last.ObservedGeneration >= set.Generation && last.UpdatedNumberScheduled == nodes && last.NumberAvailable == nodes, nil
	}); err != nil {
		g.t.Fatalf("wait for the rollout of NVIDIA's plugin: %v; %+v", err, last)
	}
}

// move moves a node over to gpufabric, or back, by the page's commands: drain, label, wait and uncordon.
func (g *ground) move(i int, over bool) {
	g.t.Helper()
	node, commands := cluster.NodeName(i), g.page.block(g.t, "kubectl label node $NODE fabric-")
	if over {
		commands = g.page.block(g.t, "kubectl label node $NODE fabric=gpufabric")
	}
	step := fmt.Sprintf("%s moves to gpufabric (%t)", node, over)
	g.t.Log(step)
	before := g.pods()
	g.shell.run(commands, node)
	g.awaitPool(i, over)
	g.ours[i] = over
	elsewhere := maps.Clone(before)
	maps.DeleteFunc(elsewhere, func(_ string, pod heldPod) bool { return pod.node == node })
	g.assertUntouched(elsewhere, step+", before uncordon")
	if over {
		g.assertPreflight(node)
	}
	g.shell.run("kubectl uncordon $NODE\n", node)
	g.awaitServed(step)
	g.assertUntouched(elsewhere, step)
}

// mistake has gpufabric on a node that NVIDIA's driver serves, and takes it off again. NVIDIA's driver must serve on, also new claims.
func (g *ground) mistake(i int) {
	g.t.Helper()
	node := cluster.NodeName(i)
	before, slices := g.pods(), g.versions(i)
	g.shell.run("kubectl label node $NODE fabric=gpufabric\n", node)
	g.awaitEvent(node, "OtherDriver")
	for name, pod := range before {
		if pod.node == node {
			delete(before, name)
			g.DeletePod(name) // its Deployment makes another
			break
		}
	}
	g.awaitServed("gpufabric waits on " + node)
	g.shell.run("kubectl label node $NODE fabric-\nkubectl wait pod --all-namespaces --for=delete --timeout=2m "+
		"--selector app.kubernetes.io/component=gpu-plugin --field-selector spec.nodeName=$NODE\n", node)
	if now := g.versions(i); !maps.Equal(now, slices) {
		g.t.Errorf("two drivers on %s have written slices: they are %v, and were %v", node, now, slices)
	}
	g.assertUntouched(before, "two drivers on "+node)
}

// mistakeOfTheirs has NVIDIA's driver on a node that gpufabric serves, and takes it off again. gpufabric must give way, and serve the node
// again with the claims that it had.
func (g *ground) mistakeOfTheirs(config *rest.Config, theirs chart.Options, i int) {
	g.t.Helper()
	step := "NVIDIA's driver comes to " + cluster.NodeName(i)
	before := g.pods()
	everywhere, plugin := theirs, maps.Clone(theirs.Values["kubeletPlugin"].(map[string]any))
	delete(plugin, "affinity")
	everywhere.Values = maps.Clone(theirs.Values)
	everywhere.Values["kubeletPlugin"] = plugin
	for _, at := range []struct {
		options chart.Options
		ours    bool
	}{{everywhere, false}, {theirs, true}} {
		if err := chart.Install(g.t.Context(), config, at.options); err != nil {
			g.t.Fatal(err)
		}
		g.awaitPool(i, at.ours)
	}
	g.awaitEvent(cluster.NodeName(i), "OtherDriver")
	g.assertUntouched(before, step)
}

// versions are the resource versions of a node's slices by name.
func (g *ground) versions(i int) map[string]string {
	g.t.Helper()
	list, err := g.Client.ResourceV1().ResourceSlices().List(g.t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, cluster.NodeName(i)).String()})
	if err != nil {
		g.t.Fatal(err)
	}
	versions := map[string]string{}
	for _, slice := range list.Items {
		versions[slice.Name] = slice.ResourceVersion
	}
	return versions
}

// awaitEvent waits for an Event about a node.
func (g *ground) awaitEvent(node, reason string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(g.Client.CoreV1().RESTClient(), "events", metav1.NamespaceAll,
		fields.OneTermEqualSelector("involvedObject.name", node))
	if _, err := watchtools.UntilWithSync(ctx, list, &corev1.Event{}, nil, func(event watch.Event) (bool, error) {
		e, ok := event.Object.(*corev1.Event)
		return ok && e.Reason == reason, nil
	}); err != nil {
		g.t.Fatalf("no Event %s on %s: %v", reason, node, err)
	}
}

// assertPreflight fails the test if preflight finds another driver on a selected node. It fails for the simulated container runtime, so its
// exit status is not 0.
func (g *ground) assertPreflight(node string) {
	g.t.Helper()
	values := fabric.Values()
	maps.Copy(values, g.page.values(g.t, "nodePlugins:"))
	text, err := yaml.Marshal(values)
	if err != nil {
		g.t.Fatal(err)
	}
	file := filepath.Join(g.t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		g.t.Fatal(err)
	}
	out, failed := g.shell.output("gpufabric doctor preflight --output json --values "+file+"\n", node)
	var checks []preflight.Check
	if err := json.Unmarshal(out, &checks); err != nil {
		g.t.Fatalf("preflight: %v, %v: %s", failed, err, out)
	}
	for _, check := range checks {
		if check.Result == preflight.Fails && check.Name != "container runtimes" ||
			check.Name == "other drivers" && check.Result != preflight.OK {
			g.t.Errorf("preflight, with %s moved: %+v", node, check)
		}
	}
}

// heldPod is a running pod with a GPU.
type heldPod struct {
	uid             types.UID
	node, container string
	// device is the GPU's device node, device and claim are what the pod has.
	device string
	claim  types.UID
	// allocated are pool and device of the claim.
	allocated string
}

// pods are the running pods by name. The test fails if two have the same device, or a pod has no claim.
func (g *ground) pods() map[string]heldPod {
	g.t.Helper()
	claims, err := g.Client.ResourceV1().ResourceClaims(g.Name).List(g.t.Context(), metav1.ListOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	pods, holders := map[string]heldPod{}, map[string]string{}
	taken := func(what, by string) {
		if other, twice := holders[what]; twice {
			g.t.Errorf("%s and %s both have %s", other, by, what)
		}
		holders[what] = by
	}
	for _, pod := range g.RunningPods() {
		if pod.DeletionTimestamp != nil {
			continue
		}
		devices := g.Devices(pod.Name, gpuNode)
		claim := claimOf(claims.Items, pod.UID)
		if len(devices) != 1 || claim == nil || claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 {
			g.t.Fatalf("pod %s received the GPUs %v, and its claim is %+v", pod.Name, devices, claim)
		}
		result := claim.Status.Allocation.Devices.Results[0]
		held := heldPod{uid: pod.UID, node: pod.Spec.NodeName, container: pod.Status.ContainerStatuses[0].ContainerID, device: devices[0],
			claim: claim.UID, allocated: result.Pool + "/" + result.Device}
		taken(held.node+devices[0], pod.Name)
		taken(held.allocated, pod.Name)
		pods[pod.Name] = held
	}
	return pods
}

func claimOf(claims []resourceapi.ResourceClaim, pod types.UID) *resourceapi.ResourceClaim {
	for i := range claims {
		if slices.ContainsFunc(claims[i].Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod }) {
			return &claims[i]
		}
	}
	return nil
}

// awaitServed waits until there is a running pod for each GPU, and fails the test unless each node's pods have devices of its driver.
func (g *ground) awaitServed(step string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	running := map[string]bool{}
	list := cache.NewListWatchFromClient(g.Client.CoreV1().RESTClient(), "pods", g.Name, fields.Everything())
	if _, err := watchtools.UntilWithSync(ctx, list, &corev1.Pod{}, nil, func(event watch.Event) (bool, error) {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return false, nil
		}
		delete(running, pod.Name)
		if event.Type != watch.Deleted && pod.DeletionTimestamp == nil && fixture.Running(pod) {
			running[pod.Name] = true
		}
		return len(running) == nodes*gpus, nil
	}); err != nil {
		g.t.Fatalf("%s: %d pods run, want %d: %v", step, len(running), nodes*gpus, err)
	}
	each := map[string]int{}
	for name, pod := range g.pods() {
		i, err := cluster.NodeIndex(pod.node)
		if err != nil {
			g.t.Fatal(err)
		}
		if pool := filepath.Dir(pod.allocated); pool != poolOf(i, g.ours[i]) {
			g.t.Errorf("%s: pod %s on %s has a device of pool %s, want %s", step, name, pod.node, pool, poolOf(i, g.ours[i]))
		}
		each[pod.node]++
	}
	for i := range nodes {
		if each[cluster.NodeName(i)] != gpus {
			g.t.Errorf("%s: %d pods run on %s, want %d", step, each[cluster.NodeName(i)], cluster.NodeName(i), gpus)
		}
	}
	g.awaitClaims(step)
}

// awaitClaims waits until there are the claims of the running pods alone: that of a pod which has ended goes after it.
func (g *ground) awaitClaims(step string) {
	g.t.Helper()
	want := map[types.UID]bool{}
	for _, pod := range g.pods() {
		want[pod.claim] = true
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	there := map[types.UID]bool{}
	list := cache.NewListWatchFromClient(g.Client.ResourceV1().RESTClient(), "resourceclaims", g.Name, fields.Everything())
	if _, err := watchtools.UntilWithSync(ctx, list, &resourceapi.ResourceClaim{}, nil, func(event watch.Event) (bool, error) {
		claim, ok := event.Object.(*resourceapi.ResourceClaim)
		if !ok {
			return false, nil
		}
		if there[claim.UID] = true; event.Type == watch.Deleted {
			delete(there, claim.UID)
		}
		return maps.Equal(there, want), nil
	}); err != nil {
		g.t.Fatalf("%s: the claims are %v, want those of the pods, %v: %v", step, there, want, err)
	}
}

// assertUntouched fails the test unless each pod of before runs on as it was.
func (g *ground) assertUntouched(before map[string]heldPod, step string) {
	g.t.Helper()
	now := g.pods()
	for name, was := range before {
		if now[name] != was {
			g.t.Errorf("%s: pod %s is %+v, and was %+v", step, name, now[name], was)
		}
	}
}

// poolOf is the pool of a node that one of the two drivers publishes.
func poolOf(i int, ours bool) string {
	if ours {
		return cluster.NodeName(i) + "-gpu"
	}
	return cluster.NodeName(i)
}

// awaitPool waits until a node's only pool is that of one of the two drivers, with all GPUs.
func (g *ground) awaitPool(i int, ours bool) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(g.Client.ResourceV1().RESTClient(), "resourceslices", metav1.NamespaceAll,
		fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, cluster.NodeName(i)))
	published := map[string]*resourceapi.ResourceSlice{}
	if _, err := watchtools.UntilWithSync(ctx, list, &resourceapi.ResourceSlice{}, nil, func(event watch.Event) (bool, error) {
		slice, ok := event.Object.(*resourceapi.ResourceSlice)
		if !ok {
			return false, nil
		}
		if published[slice.Name] = slice; event.Type == watch.Deleted {
			delete(published, slice.Name)
		}
		count := 0
		for _, slice := range published {
			if slice.Spec.Pool.Name != poolOf(i, ours) {
				return false, nil
			}
			count += len(slice.Spec.Devices)
		}
		return count == gpus, nil
	}); err != nil {
		var pools []string
		for _, slice := range published {
			pools = append(pools, fmt.Sprintf("%s with %d devices", slice.Spec.Pool.Name, len(slice.Spec.Devices)))
		}
		g.t.Fatalf("%s has the pools %v, want %s alone with %d devices: %v", cluster.NodeName(i), pools, poolOf(i, ours), gpus, err)
	}
}
