package charts

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// TestRightsSufficeForProgram runs the program itself as the chart's service accounts, with tokens bound to pods as the kubelet's
// are: a node publishes its devices, a domain gets its templates and DaemonSet and loses them again, and a node reports on an RDMA pool.
func TestRightsSufficeForProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver and builds the program; -short asks for neither")
	}
	program := buildProgram(t)
	t.Run("as the chart comes", func(t *testing.T) {
		roles := startRoles(t, program, bareMachine(t), map[string]any{"webhook": off()}, "controller", "compute-domain-plugin")
		roles.formADomain(t)
		roles.checkRights(t)
	})
	t.Run("with RDMA", func(t *testing.T) {
		t.Setenv("NIC_DRIVER_IMAGES", "mellanox/") // as the chart has it for the controller
		roles := startRoles(t, program, bareMachine(t), map[string]any{"webhook": off(), "rdma": map[string]any{
			"enabled": true, "nicClusterPolicy": map[string]any{"images": []any{"mellanox/"}}}}, "controller", "compute-domain-plugin",
			"rdma-plugin")
		roles.formADomain(t)
		roles.servePools(t)
		roles.checkRights(t)
	})
	t.Run("with NetworkPolicies, certificates and guarded metrics", func(t *testing.T) {
		roles := startRoles(t, program, bareMachine(t), map[string]any{"webhook": off(), "networkPolicy": on(),
			"metrics": map[string]any{"authentication": true}, "computeDomains": map[string]any{"certificates": "own"}},
			"controller --network-policies --metrics-authentication --imex-certificates", "compute-domain-plugin")
		roles.policed = true
		roles.formADomain(t)
		roles.checkRights(t)
	})
	t.Run("with GPUs", func(t *testing.T) {
		values := everything()
		values["webhook"] = off()
		roles := startRoles(t, program, fakeMachine(t, "h100-hgx"), values, "controller", "compute-domain-plugin", "gpu-plugin", "rdma-plugin",
			"vgpu-plugin")
		roles.publishHardware(t)
		roles.checkRights(t)
	})
}

// machine is where a node's hardware is.
type machine struct {
	dir              string // short, for sockets; other directories may be elsewhere
	driver, sys, dev string
	procDevices      string
}

// bareMachine has no hardware.
func bareMachine(t *testing.T) machine {
	t.Helper()
	dir := shortDir(t)
	if err := os.MkdirAll(dir+"/bus/pci/devices", 0o755); err != nil { // the part of sysfs that such a machine has
		t.Fatal(err)
	}
	return machine{dir: dir, driver: dir, sys: dir, dev: dir, procDevices: "/proc/devices"}
}

// fakeMachine renders a profile of fakes/.
func fakeMachine(t *testing.T, profile string) machine {
	t.Helper()
	build := exec.CommandContext(t.Context(), "make", "--silent", "-C", Dir("../fakes"))
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the fakes: %v\n%s", err, said)
	}
	dir := shortDir(t)
	render := exec.CommandContext(t.Context(), Dir("../fakes/build/fakefabric"), "render", "--profile", profile, "--node", "0", "--nodes", "1",
		"--root", dir+"/f")
	if said, err := render.CombinedOutput(); err != nil {
		t.Fatalf("render %s: %v\n%s", profile, err, said)
	}
	return machine{dir: dir, driver: dir + "/f/driver", sys: dir + "/f/sys", dev: dir + "/f/dev", procDevices: dir + "/f/proc/devices"}
}

// roles are running, on one node.
type roles struct {
	server  *server
	admin   kubernetes.Interface
	outputs map[string]func() *bytes.Buffer // stop a role and return its output
	policed bool                            // the controller makes NetworkPolicies
}

// startRoles starts the roles of these names, each of which may be followed by flags.
func startRoles(t *testing.T, program string, on machine, values map[string]any, names ...string) *roles {
	t.Helper()
	live := startServer(t)
	live.installChart(t, values)
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a",
		Labels: map[string]string{"feature.node.kubernetes.io/pci-15b3.present": "true", "kubernetes.io/arch": "amd64",
			"feature.node.kubernetes.io/system-os_release.ID": "ubuntu", "feature.node.kubernetes.io/system-os_release.VERSION_ID": "24.04",
			"feature.node.kubernetes.io/kernel-version.full": "6.8.0"}}}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// These are the chart's values. A policy refuses a controller that uses others.
	image := "ghcr.io/gpufabric/gpufabric:" + load(t, "gpufabric").Metadata.AppVersion
	out := &roles{server: live, admin: admin, outputs: map[string]func() *bytes.Buffer{}}
	for _, name := range names {
		name, more, _ := strings.Cut(name, " ")
		args := []string{name, "--image=" + image}
		if name != "controller" {
			args = []string{name, "--node-name=node-a", "--driver-root=" + on.driver, "--sysfs-root=" + on.sys, "--dev-root=" + on.dev,
				"--proc-devices=" + on.procDevices,
				"--kubelet-root=" + on.dir, "--cdi-root=" + on.dir + "/cdi", "--state-dir=" + filepath.Join(on.dir, name)}
		}
		switch name {
		case "gpu-plugin":
			args = append(args, "--handover-dir="+on.dir+"/handover", "--mps-dir="+on.dir+"/mps")
		case "vgpu-plugin":
			args = append(args, "--handover-dir="+on.dir+"/handover", "--nri-socket=")
		}
		out.outputs[name] = start(t, programOf(program, name), kubeconfig(t, live.config, admin, "gpufabric-"+name),
			append(args, strings.Fields(more)...)...)
	}
	return out
}

// publishHardware waits for what each plugin publishes on a machine with GPUs and NICs.
func (r *roles) publishHardware(t *testing.T) {
	t.Helper()
	slices := r.admin.ResourceV1().ResourceSlices()
	for _, driver := range []string{"compute-domain.nvidia.com", "gpu.nvidia.com", "rdma.gpufabric.io"} {
		ofDriver := metav1.ListOptions{FieldSelector: "spec.driver=" + driver}
		await(t, "a ResourceSlice of "+driver, slices.Watch, is(watch.Added), ofDriver)
	}
	layouts := r.server.client.Resource(schema.GroupVersionResource{Group: "gpufabric.io", Version: "v1alpha1", Resource: "miglayouts"})
	layout := object(`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "MIGLayout", "metadata": {"name": "layout"}, "spec": {"layout": "off",
		"config": {"version": "v1", "mig-configs": {"off": [{"devices": "all", "mig-enabled": false}]}}}}`)
	if _, err := layouts.Create(t.Context(), layout, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the node's report on a MIGLayout", layouts.Watch, func(event watch.Event) bool {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return false
		}
		nodes, _, _ := unstructured.NestedSlice(object.Object, "status", "nodes")
		return len(nodes) == 1
	}, metav1.ListOptions{})
	await(t, "the layout's conditions", layouts.Watch, func(event watch.Event) bool {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return false
		}
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		return len(conditions) > 0
	}, metav1.ListOptions{})
	profiles := r.server.client.Resource(schema.GroupVersionResource{Group: "gpufabric.io", Version: "v1alpha1", Resource: "vgpuprofiles"})
	profile := object(`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "VGPUProfile", "metadata": {"name": "tenth"}, "spec": {"mode": ` +
		`"Software", "memory": "8Gi", "cores": 10}}`)
	if _, err := profiles.Create(t.Context(), profile, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	classes := r.admin.ResourceV1().DeviceClasses()
	await(t, "the profile's DeviceClass", classes.Watch, func(event watch.Event) bool {
		class, ok := event.Object.(*resourcev1.DeviceClass)
		return ok && class.Spec.ExtendedResourceName != nil && strings.HasPrefix(*class.Spec.ExtendedResourceName, "gpufabric.io/")
	}, metav1.ListOptions{})
	nodes := r.admin.CoreV1().Nodes()
	await(t, "the node's registration with Volcano", nodes.Watch, func(event watch.Event) bool {
		node, ok := event.Object.(*corev1.Node)
		return ok && node.Annotations["volcano.sh/node-vgpu-register"] != ""
	}, metav1.ListOptions{})
}

func (r *roles) formADomain(t *testing.T) {
	t.Helper()
	slices := r.admin.ResourceV1().ResourceSlices()
	await(t, "the node's ResourceSlice", slices.Watch, is(watch.Added), metav1.ListOptions{})

	r.server.addDomain(t, "made")
	templates, daemons := r.admin.ResourceV1().ResourceClaimTemplates("default"), r.admin.AppsV1().DaemonSets(namespace)
	ofDomain := metav1.ListOptions{LabelSelector: "resource.nvidia.com/computeDomain"}
	await(t, "the domain's template", templates.Watch, is(watch.Added), ofDomain)
	await(t, "the domain's DaemonSet", daemons.Watch, is(watch.Added), ofDomain)
	r.madePods(t, ofDomain.LabelSelector, false)
	if r.policed {
		await(t, "the domain's NetworkPolicy", r.admin.NetworkingV1().NetworkPolicies(namespace).Watch, is(watch.Added), ofDomain)
		r.madePorts(t, ofDomain.LabelSelector)
	}

	domains := r.server.client.Resource(domainResource).Namespace("default")
	deleteAndAwait(t, domains, "made")
}

// servePools gives the node a pool of its own and the seed's NicClusterPolicy, which makes another.
func (r *roles) servePools(t *testing.T) {
	t.Helper()
	pools := r.server.client.Resource(poolResource)
	pool := object(`{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool", "metadata": {"name": "pool"}, "spec": {"resourceName": ` +
		`"hca", "rdmaHcaMax": 8, "devices": ["ens2f0"]}}`)
	if _, err := pools.Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reported := func(wanted func(name string) bool) func(watch.Event) bool {
		return func(event watch.Event) bool {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok || !wanted(object.GetName()) {
				return false
			}
			nodes, _, _ := unstructured.NestedSlice(object.Object, "status", "nodes")
			conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
			return len(nodes) == 1 && len(conditions) > 0
		}
	}
	await(t, "the pool's status, from its node and from the controller", pools.Watch,
		reported(func(name string) bool { return name == "pool" }), metav1.ListOptions{})

	seed, err := os.ReadFile(Dir("../examples/manifests/nicclusterpolicy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	policy := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(seed, &policy.Object); err != nil {
		t.Fatal(err)
	}
	policy.SetNamespace("") // as kubectl does for a kind that has none
	policies := r.server.client.Resource(schema.GroupVersionResource{Group: "mellanox.com", Version: "v1alpha1",
		Resource: "nicclusterpolicies"})
	if _, err := policies.Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the policy's driver", r.admin.AppsV1().DaemonSets(namespace).Watch, is(watch.Added),
		metav1.ListOptions{LabelSelector: "gpufabric.io/nic-cluster-policy"})
	r.madePods(t, "gpufabric.io/nic-cluster-policy", true)
	await(t, "the status of the policy's pool", pools.Watch, reported(func(name string) bool { return name != "pool" }), metav1.ListOptions{})
	await(t, "the policy's status", policies.Watch, func(event watch.Event) bool {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return false
		}
		state, _, _ := unstructured.NestedString(object.Object, "status", "state")
		return state != ""
	}, metav1.ListOptions{})
}

// checkRights stops the roles and searches their output for refused requests.
func (r *roles) checkRights(t *testing.T) {
	t.Helper()
	for role, stop := range r.outputs {
		for line := range strings.Lines(stop().String()) {
			if strings.Contains(strings.ToLower(line), "forbidden") {
				t.Errorf("the %s lacks a right: %s", role, line)
			}
		}
	}
}
