package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
)

// published are the slices of a node with n A100s, cut by a software profile of that name.
func published(t *testing.T, node string, n int, profiles ...devices.Profile) []client.Object {
	t.Helper()
	found, err := inventory.Reader{NVML: gputest.New(t, n), Locate: func(id string) (inventory.Place,
		error) {
		return inventory.Place{BusID: id}, nil
	}}.Read()
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for i, s := range devices.NewPool(found, devices.Options{Forms: devices.Forms{Mode: devices.ModeFlexible},
		Profiles: profiles}).Slices(nil) {
		out = append(out, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + string(rune('a'+i))},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: devices.Driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: devices.PoolName(node)}, Devices: s.Devices,
				SharedCounters: s.SharedCounters,
			}})
	}
	return out
}

func api(objects ...client.Object) client.Client {
	scheme := runtime.NewScheme()
	_ = clientgoscheme.AddToScheme(scheme)
	_ = v1alpha1.AddToScheme(scheme)
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.VGPUProfile{},
		&v1alpha1.MIGLayout{}).
		WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorDriver, func(o client.Object) []string {
			return []string{o.(*resourceapi.ResourceSlice).Spec.Driver}
		}).
		WithIndex(&resourceapi.ResourceClaimTemplate{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
		Build()
}

func quantity(text string) *resource.Quantity { q := resource.MustParse(text); return &q }

func profile(name string, spec v1alpha1.VGPUProfileSpec) *v1alpha1.VGPUProfile {
	return &v1alpha1.VGPUProfile{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 3}, Spec: spec}
}

func TestControllerMakesClassTemplateAndCount(t *testing.T) {
	for name, c := range map[string]struct {
		spec   v1alpha1.VGPUProfileSpec
		fits   int32
		reason string
	}{
		"software": {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUSoftware, Memory: quantity("15Gi"), Cores: 10,
			Namespaces: []string{"team"}}, 4, "Fits"},
		"mig by memory":       {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUMIG, Memory: quantity("3000M")}, 14, "Fits"},
		"mig by more memory":  {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUMIG, Memory: quantity("10G")}, 8, "Fits"},
		"mig by cores":        {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUMIG, Cores: 40}, 4, "Fits"},
		"exclusive":           {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive}, 2, "Fits"},
		"larger than any GPU": {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive, Memory: quantity("80Gi")}, 0, "NothingFits"},
		"another model too": {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive,
			ProductNames: []string{"NVIDIA L40S", "NVIDIA A100-SXM4-40GB"}}, 2, "Fits"},
		"another model": {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive, ProductNames: []string{"NVIDIA L40S"}}, 0, "NothingFits"},
		"wrong":         {v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUSoftware}, 0, "InvalidSpec"},
	} {
		t.Run(name, func(t *testing.T) {
			var cut []devices.Profile
			if c.spec.Mode == v1alpha1.VGPUSoftware && c.spec.Memory != nil {
				cut = []devices.Profile{{Name: "p", Share: devices.Share{Memory: uint64(c.spec.Memory.Value()), Cores: int64(c.spec.Cores)}}}
			}
			k := api(append(published(t, "n1", 2, cut...), profile("p", c.spec))...)
			r := &profiles{client: k, reader: k, claims: &claims{reader: k, now: time.Now}, now: time.Now}
			request := ctrl.Request{NamespacedName: types.NamespacedName{Name: "p"}}
			for range 2 { // the second changes nothing
				if _, err := r.Reconcile(t.Context(), request); err != nil {
					t.Fatal(err)
				}
			}
			var p v1alpha1.VGPUProfile
			if err := k.Get(t.Context(), request.NamespacedName, &p); err != nil {
				t.Fatal(err)
			}
			ready := meta.FindStatusCondition(p.Status.Conditions, "Ready")
			if p.Status.Fits != c.fits || ready == nil || ready.Reason != c.reason {
				t.Errorf("fits %d for %+v, want %d for %s", p.Status.Fits, ready, c.fits, c.reason)
			}
			if c.reason == "InvalidSpec" {
				return
			}
			if named := strings.Contains(ready.Message, `is named "NVIDIA L40S"`); named != (len(c.spec.ProductNames) > 0) {
				t.Errorf("the condition says %q of product names %q", ready.Message, c.spec.ProductNames)
			}
			var class resourceapi.DeviceClass
			if err := k.Get(t.Context(), request.NamespacedName, &class); err != nil {
				t.Fatal(err)
			}
			if class.Spec.ExtendedResourceName == nil || *class.Spec.ExtendedResourceName != "gpufabric.io/p" {
				t.Errorf("extended resource %v", class.Spec.ExtendedResourceName)
			}
			if result := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).CompileCELExpression(
				class.Spec.Selectors[0].CEL.Expression, dracel.Options{}); result.Error != nil {
				t.Errorf("selector %s: %v", class.Spec.Selectors[0].CEL.Expression, result.Error)
			}
			for _, namespace := range c.spec.Namespaces {
				var template resourceapi.ResourceClaimTemplate
				if err := k.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: "p"}, &template); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestControllerRemovesTemplatesOfNamespacesThatAreNoLongerNamed(t *testing.T) {
	p := profile("p", v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive, Namespaces: []string{"team", "left"}})
	theirs := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "other"}}
	k := api(append(published(t, "n1", 2), p, theirs)...)
	r := &profiles{client: k, reader: k, claims: &claims{reader: k, now: time.Now}, now: time.Now}
	request := ctrl.Request{NamespacedName: types.NamespacedName{Name: "p"}}
	namespaces := func() string {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		var templates resourceapi.ResourceClaimTemplateList
		if err := k.List(t.Context(), &templates); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, template := range templates.Items {
			names = append(names, template.Namespace)
		}
		return strings.Join(names, " ")
	}
	if got := namespaces(); got != "left other team" {
		t.Fatalf("templates in %s", got)
	}
	if err := k.Get(t.Context(), request.NamespacedName, p); err != nil {
		t.Fatal(err)
	}
	p.Spec.Namespaces, p.Generation = []string{"team"}, p.Generation+1
	if err := k.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := namespaces(); got != "other team" {
		t.Errorf("templates in %s, want those of the namespace that is named, and of others", got)
	}
}

func TestControllerKeepsAnotherOwnersClass(t *testing.T) {
	theirs := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	k := api(theirs, profile("p", v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive}))
	r := &profiles{client: k, reader: k, claims: &claims{reader: k, now: time.Now}, now: time.Now}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "p"}}); err == nil ||
		!strings.Contains(err.Error(), "does not belong") {
		t.Errorf("got %v", err)
	}
}

func TestControllerReportsALayoutReady(t *testing.T) {
	layout := func(entries ...v1alpha1.MIGLayoutNode) *v1alpha1.MIGLayout {
		l := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "l", Generation: 2}}
		l.Spec = v1alpha1.MIGLayoutSpec{Layout: "a", Config: v1alpha1.MIGPartedConfig{Version: "v1",
			Layouts: map[string][]v1alpha1.MIGPartedEntry{"a": {{Devices: v1alpha1.AllOrIndices{All: true}}}}}}
		l.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"gpu": "yes"}}
		l.Status.Nodes = entries
		return l
	}
	node := func(name, gpu string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"gpu": gpu}}}
	}
	applied := func(name string) v1alpha1.MIGLayoutNode {
		return v1alpha1.MIGLayoutNode{Name: name, ObservedGeneration: 2, State: v1alpha1.MIGLayoutApplied}
	}
	for name, c := range map[string]struct {
		entries         []v1alpha1.MIGLayoutNode
		reason, message string
	}{
		"all have it":   {[]v1alpha1.MIGLayoutNode{applied("n1"), applied("n2")}, "Applied", "2 of 2"},
		"one is silent": {[]v1alpha1.MIGLayoutNode{applied("n1")}, "WaitingForNodes", "n2"},
		"one speaks of the past": {[]v1alpha1.MIGLayoutNode{applied("n1"), {Name: "n2", ObservedGeneration: 1, State: v1alpha1.MIGLayoutApplied}},
			"WaitingForNodes", "1 of 2"},
		"one waits": {[]v1alpha1.MIGLayoutNode{applied("n1"),
			{Name: "n2", ObservedGeneration: 2, State: v1alpha1.MIGLayoutWaiting, Message: "held by claim x"}}, "Waiting", "n2 (held by claim x)"},
		"one failed": {[]v1alpha1.MIGLayoutNode{applied("n1"),
			{Name: "n2", ObservedGeneration: 2, State: v1alpha1.MIGLayoutFailed, Message: "no MIG"}}, "Failed", "n2 (no MIG)"},
	} {
		t.Run(name, func(t *testing.T) {
			k := api(layout(c.entries...), node("n1", "yes"), node("n2", "yes"), node("n3", "no"))
			r := &layouts{client: k, reader: k, now: time.Now}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "l"}}); err != nil {
				t.Fatal(err)
			}
			var l v1alpha1.MIGLayout
			if err := k.Get(t.Context(), types.NamespacedName{Name: "l"}, &l); err != nil {
				t.Fatal(err)
			}
			ready := meta.FindStatusCondition(l.Status.Conditions, "Ready")
			if ready == nil || ready.Reason != c.reason || !strings.Contains(ready.Message, c.message) ||
				(ready.Status == metav1.ConditionTrue) != (c.reason == "Applied") {
				t.Errorf("condition %+v, want %s with %s", ready, c.reason, c.message)
			}
		})
	}
}

func TestLayoutWithAutoIsSummedUpByLayoutsOfItsNodes(t *testing.T) {
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": name}}}
	}
	auto := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "auto", UID: "auto-uid", Generation: 1}}
	auto.Spec.Auto = &v1alpha1.MIGAuto{Shapes: []v1alpha1.MIGAutoShape{{Profile: "whole"}, {Profile: "1g.10gb"}, {Profile: "1g.7gb"}}}
	hand := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "hand", UID: "hand-uid"}}
	hand.Spec = v1alpha1.MIGLayoutSpec{NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "n2"}}, Layout: "a",
		Config: v1alpha1.MIGPartedConfig{Version: "v1", Layouts: map[string][]v1alpha1.MIGPartedEntry{"a": {}}}}
	child := func(state v1alpha1.MIGLayoutState) *v1alpha1.MIGLayout {
		l := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "auto-n1", Generation: 4,
			Labels: map[string]string{v1alpha1.MIGByDemandLabel: "auto-uid"}}}
		l.Status.Nodes = []v1alpha1.MIGLayoutNode{{Name: "n1", ObservedGeneration: 4, State: state, Message: "its state"}}
		return l
	}
	knows := child(v1alpha1.MIGLayoutApplied)
	knows.Status.Nodes[0].Profiles = []v1alpha1.MIGNodeProfile{{ProductName: "NVIDIA H100", Name: "1g.10gb"}}
	for name, c := range map[string]struct {
		children        []client.Object
		reason, message string
	}{
		"before any layout": {nil, "WaitingForNodes", "0 of 1 nodes"},
		"applied": {[]client.Object{child(v1alpha1.MIGLayoutApplied)}, "ByDemand",
			"1 of 1 nodes get their layouts by demand; left out: n2 (MIGLayout hand selects it)"},
		"a profile of no GPU": {[]client.Object{knows}, "ByDemand", "no GPU of these nodes has the profile 1g.7gb (auto.shapes[2]);"},
		"being changed":       {[]client.Object{child(v1alpha1.MIGLayoutWaiting)}, "ByDemand", "being changed: n1 (its state)"},
		"failed":              {[]client.Object{child(v1alpha1.MIGLayoutFailed)}, "Failed", "failed on n1 (its state)"},
	} {
		t.Run(name, func(t *testing.T) {
			k := api(append(c.children, node("n1"), node("n2"), auto.DeepCopy(), hand.DeepCopy())...)
			r := &layouts{client: k, reader: k, now: time.Now}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "auto"}}); err != nil {
				t.Fatal(err)
			}
			var l v1alpha1.MIGLayout
			if err := k.Get(t.Context(), types.NamespacedName{Name: "auto"}, &l); err != nil {
				t.Fatal(err)
			}
			if ready := meta.FindStatusCondition(l.Status.Conditions, "Ready"); ready == nil || ready.Reason != c.reason ||
				!strings.Contains(ready.Message, c.message) {
				t.Errorf("condition %+v, want %s with %s", ready, c.reason, c.message)
			}
		})
	}
}
