package diagnosis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/rdma/apiservertest"
	rdma "gpufabric.io/drivers/rdma/dra"
)

const (
	system = snapshot.DefaultSystem
	tenant = "tenant"
	gib    = 1 << 30
)

// ground is a real API server with a healthy cluster of three nodes. Each cause changes objects and undoes the change afterwards.
type ground struct {
	t      testing.TB
	client client.Client
	config *rest.Config
	undo   []func(context.Context) error
}

// newGround is a healthy cluster on a real API server.
func newGround(t *testing.T) *ground {
	t.Helper()
	config := apiservertest.Start(t, "../../api/crds")
	kinds, err := snapshot.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{t: t, client: c, config: config}
	g.healthy()
	return g
}

// put creates an object with its status. It is removed when the cause is undone, also where its status could not be written.
func (g *ground) put(objects ...client.Object) {
	g.t.Helper()
	for _, o := range objects {
		err := g.tryCreate(g.t.Context(), o)
		if o.GetUID() != "" {
			g.undo = append(g.undo, func(ctx context.Context) error {
				return client.IgnoreNotFound(g.client.Delete(ctx, o, client.GracePeriodSeconds(0)))
			})
		}
		if err != nil {
			g.t.Fatal(err)
		}
	}
}

func (g *ground) create(o client.Object) {
	g.t.Helper()
	if err := g.tryCreate(g.t.Context(), o); err != nil {
		g.t.Fatal(err)
	}
}

func (g *ground) tryCreate(ctx context.Context, o client.Object) error {
	wanted := o.DeepCopyObject().(client.Object)
	if err := g.client.Create(ctx, o); err != nil {
		return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
	}
	switch o.(type) {
	case *corev1.Event, *corev1.Namespace, *resourceapi.ResourceSlice, *resourceapi.DeviceClass, *resourceapi.ResourceClaimTemplate,
		*corev1.Node, *rbacv1.ClusterRoleBinding:
		return nil // no status, or one that create accepts
	}
	wanted.SetUID(o.GetUID())
	wanted.SetResourceVersion(o.GetResourceVersion())
	if err := g.client.Status().Update(ctx, wanted); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

// change changes an object that is there.
func change[P interface {
	*T
	client.Object
}, T any](g *ground, namespace, name string, to func(P)) {
	g.t.Helper()
	object := P(new(T))
	key := types.NamespacedName{Namespace: namespace, Name: name}
	write := func(ctx context.Context, with func(P)) error {
		if err := g.client.Get(ctx, key, object); err != nil {
			return err
		}
		with(object)
		wanted := object.DeepCopyObject().(P)
		if err := g.client.Update(ctx, object); err != nil {
			return err
		}
		wanted.SetResourceVersion(object.GetResourceVersion())
		return client.IgnoreNotFound(g.client.Status().Update(ctx, wanted))
	}
	var before P
	err := write(g.t.Context(), func(o P) {
		before = o.DeepCopyObject().(P)
		to(o)
	})
	if before != nil { // also where only a part was written
		g.undo = append(g.undo, func(ctx context.Context) error {
			return write(ctx, func(o P) {
				version := o.GetResourceVersion()
				*o = *(before.DeepCopyObject().(P))
				o.SetResourceVersion(version)
			})
		})
	}
	if err != nil {
		g.t.Fatalf("change %T %s: %v", object, name, err)
	}
}

// remove deletes an object that is there.
func (g *ground) remove(o client.Object, namespace, name string) {
	g.t.Helper()
	if err := g.client.Get(g.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, o); err != nil {
		g.t.Fatal(err)
	}
	if err := g.client.Delete(g.t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		g.t.Fatal(err)
	}
	o.SetResourceVersion("")
	o.SetUID("")
	g.undo = append(g.undo, func(ctx context.Context) error { return g.tryCreate(ctx, o) })
}

// heal undoes the cause, as far as it can: what stays would be found behind the next cause.
func (g *ground) heal() {
	g.t.Helper()
	var errs []error
	for i := len(g.undo) - 1; i >= 0; i-- {
		errs = append(errs, g.undo[i](g.t.Context()))
	}
	g.undo = nil
	if err := errors.Join(errs...); err != nil {
		g.t.Fatalf("take the cause back: %v", err)
	}
}

// ask reads the cluster and returns the first cause.
func (g *ground) ask(subject diagnosis.Subject) *diagnosis.Report {
	g.t.Helper()
	scope := snapshot.Scope{Namespace: subject.Namespace, System: system, Timeout: time.Minute}
	if subject.Kind == diagnosis.Pod {
		scope.Pod = subject.Name
	}
	taken, err := snapshot.Take(g.t.Context(), g.config, scope)
	if err != nil {
		g.t.Fatal(err)
	}
	report, err := diagnosis.Diagnose(taken, subject)
	if err != nil {
		g.t.Fatal(err)
	}
	return report
}

// healthy makes a cluster of three nodes of four GPUs and two NICs, with gpufabric on it.
func (g *ground) healthy() {
	g.furnish(3)
	for i := range 3 {
		name := nodeName(i)
		g.put(node(name))
		// The API server taints a new node; the node controller removes the taint once the node is ready.
		change(g, "", name, func(n *corev1.Node) { n.Spec.Taints = nil })
		for _, component := range []string{"gpu-plugin", "compute-domain-plugin", "rdma-plugin"} {
			g.put(pluginPod(component, name))
		}
		g.put(gpuSlices(name, "whole", nil)...)
		g.put(channelSlice(name, ""), nicSlice(name, nil))
	}
	g.undo = nil
}

// furnish makes what the chart installs for this many nodes, and the namespaces.
func (g *ground) furnish(nodes int32) {
	g.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}})
	g.put(classes()...)
	g.put(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "gpufabric-controller", Labels: map[string]string{"app.kubernetes.io/part-of": "gpufabric"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "gpufabric-controller"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "gpufabric-controller", Namespace: system}}})
	for _, component := range []string{"gpu-plugin", "compute-domain-plugin", "rdma-plugin"} {
		g.put(daemonSet(component, nodes))
	}
	labels := own("controller")
	g.put(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "gpufabric-controller", Labels: labels},
		Spec:   appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels, "controller")},
		Status: appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}})
}

func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

func own(component string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "gpufabric", "app.kubernetes.io/part-of": "gpufabric",
		"app.kubernetes.io/component": component}
}

func template(labels map[string]string, name string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "ghcr.io/gpufabric/gpufabric:0.1.0"}}}}
}

func daemonSet(component string, nodes int32) *appsv1.DaemonSet {
	labels := own(component)
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "gpufabric-" + component, Labels: labels},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels, component)},
		Status: appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: nodes, CurrentNumberScheduled: nodes,
			NumberReady: nodes, NumberAvailable: nodes}}
}

func pluginPod(component, node string) *corev1.Pod {
	p := pod("gpufabric-"+component+"-"+node, node)
	p.Namespace, p.Labels = system, own(component)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
		Status: corev1.ConditionTrue}}}
	return p
}

func pod(name, node string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "ubuntu:24.04"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: ptr.To(c)})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c})
	}
	return p
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.1", ContainerRuntimeVersion: "containerd://2.1.4", OperatingSystem: "linux",
				Architecture: "arm64"},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("144"), corev1.ResourceMemory: resource.MustParse("900Gi")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				{Type: "GPUDriver", Status: corev1.ConditionTrue, Reason: "DriverReady", Message: "the NVIDIA driver 580.95.5 can be used"},
				{Type: "GPUForms", Status: corev1.ConditionTrue, Reason: "ChartDefault"}},
		}}
}

func class(name, expression string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}}
}

// classes are the chart's.
func classes() []client.Object {
	gpu := class("gpu.nvidia.com", `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`)
	gpu.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	return []client.Object{gpu,
		class("mig.nvidia.com", `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'`),
		class("gpu-share.gpufabric.io", `device.driver == 'gpu.nvidia.com' && device.allowMultipleAllocations == true && `+
			`!('vgpuProfile' in device.attributes['gpu.nvidia.com'])`),
		class("compute-domain-default-channel.nvidia.com", `device.driver == 'compute-domain.nvidia.com' && `+
			`device.attributes['compute-domain.nvidia.com'].type == 'channel' && device.attributes['compute-domain.nvidia.com'].id == 0`),
		class("rdma.gpufabric.io", `device.driver == 'rdma.gpufabric.io'`),
	}
}

// gpuSlices are what gpu-plugin publishes for a node's four GPUs in a form.
func gpuSlices(node, form string, taint *resourceapi.DeviceTaint) []client.Object {
	return gpuSlicesOf(node, form, "580.95.5", "", taint)
}

func gpuSlicesOf(node, form, version, clique string, taint *resourceapi.DeviceTaint) []client.Object {
	forms, err := devices.ParseForms(form)
	if err != nil {
		panic(err) // a mistake of the test
	}
	var gpus []*inventory.GPU
	for i := range 4 {
		gpus = append(gpus, a100(i, clique))
	}
	pool := devices.NewPool(&inventory.Node{DriverVersion: version, CUDAVersion: 13000, GPUs: gpus}, devices.Options{Forms: forms})
	taints := map[string][]resourceapi.DeviceTaint{}
	if taint != nil {
		for _, d := range pool.Devices() {
			taints[d.Name()] = []resourceapi.DeviceTaint{*taint}
		}
	}
	layout := pool.Slices(taints)
	var out []client.Object
	for i, s := range layout {
		out = append(out, slice(fmt.Sprintf("%s-gpu-%d", node, i), devices.Driver, devices.PoolName(node), node, len(layout), s.Devices,
			s.SharedCounters))
	}
	return out
}

func a100(minor int, clique string) *inventory.GPU {
	profile := inventory.Profile{Name: "1g.5gb", ID: 19, MaxInstances: 7, Slices: 1, MemoryBytes: 4864 << 20, Multiprocessors: 14}
	for start := range 7 {
		profile.Placements = append(profile.Placements, inventory.Placement{Start: start, Size: 1})
	}
	g := &inventory.GPU{Index: minor, Minor: minor, UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", minor),
		ProductName: "NVIDIA A100-SXM4-40GB", Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: [2]int{8, 0}, MemoryBytes: 40 * gib,
		Place: inventory.Place{BusID: fmt.Sprintf("0000:%02x:00.0", minor), Root: "pci0000:00"},
		MIG:   &inventory.MIG{MemorySlices: 8, Profiles: []inventory.Profile{profile}}}
	g.Clique = clique
	return g
}

func slice(name, driver, pool, node string, count int, list []resourceapi.Device,
	counters []resourceapi.CounterSet) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver,
		NodeName: &node,
		Devices:  list, SharedCounters: counters, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(count)}}}
}

// channelSlice is what compute-domain-plugin publishes; fabric is the value of its taint, empty: none.
func channelSlice(node, fabric string) *resourceapi.ResourceSlice {
	channel := resourceapi.Device{Name: computedomain.ChannelDevice, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		computedomain.AttributeType: {StringValue: ptr.To(computedomain.TypeChannel)}, computedomain.AttributeID: {IntValue: ptr.To[int64](0)}}}
	if fabric != "" {
		channel.Taints = []resourceapi.DeviceTaint{{Key: computedomain.TaintFabric, Value: fabric,
			Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return slice(node+"-channel", computedomain.Driver, computedomain.PoolName(node), node, 1, []resourceapi.Device{channel}, nil)
}

// nicSlice is what rdma-plugin publishes for a node's two NICs.
func nicSlice(node string, with func(*resourceapi.Device)) *resourceapi.ResourceSlice {
	var list []resourceapi.Device
	for i := range 2 {
		text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
		number := func(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }
		d := resourceapi.Device{Name: fmt.Sprintf("mlx5-%d-1", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			rdma.AttrRDMADevice: text(fmt.Sprintf("mlx5_%d", i)), rdma.AttrRail: number(int64(i)), rdma.AttrRate: number(400),
			rdma.AttrMTU:       number(9000),
			rdma.AttrLinkLayer: text("InfiniBand"), rdma.AttrFirmware: text("28.43.2026"), rdma.AttrPSID: text("MT_0000000838"),
			rdma.AttrDeviceID: text("1021"), rdma.AttrGPUDirect: text("dmabuf")}}
		if with != nil && i == 0 {
			with(&d)
		}
		list = append(list, d)
	}
	return slice(node+"-rdma", rdma.Driver, node+"-rdma", node, 1, list, nil)
}

// claim requests devices of a class.
func claim(name, class string, count int64, selectors ...string) *resourceapi.ResourceClaim {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, s := range selectors {
		r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: r}}}}}
}

// allocated gives a claim devices, as the scheduler does.
func allocated(c *resourceapi.ResourceClaim, driver, pool string, names ...string) *resourceapi.ResourceClaim {
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, name := range names {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: driver, Pool: pool, Device: name})
	}
	return c
}

func event(kind, namespace, name string, uid types.UID, component, reason, message string) *corev1.Event {
	where := namespace
	if where == "" {
		where = metav1.NamespaceDefault
	}
	return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: where, GenerateName: "e"}, Type: corev1.EventTypeWarning, Reason: reason,
		Message: message,
		Source:  corev1.EventSource{Component: component}, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name, UID: uid}}
}
