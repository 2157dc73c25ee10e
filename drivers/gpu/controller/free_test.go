package controller

import (
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
)

// claim is one that has a device of node n1; memory is its part of a shareable form.
func claim(name, device, memory string) *resourceapi.ResourceClaim {
	result := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: devices.Driver, Pool: devices.PoolName("n1"), Device: device}
	if memory != "" {
		result.ShareID = ptr.To(types.UID("share-" + name))
		result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{devices.CapMemory: resource.MustParse(memory),
			devices.CapCores: resource.MustParse("10")}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}}}}}
}

// TestFreeSharesExcludeClaims is about two A100-40 of seven slots for 1g.5gb each, or two shares of 15 GiB.
func TestFreeSharesExcludeClaims(t *testing.T) {
	software := v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUSoftware, Memory: quantity("15Gi"), Cores: 10}
	mig := v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUMIG, Memory: quantity("3000M")}
	exclusive := v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive}
	admin := claim("admin", "gpu-0", "")
	admin.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	elsewhere := claim("elsewhere", "gpu-0", "")
	elsewhere.Status.Allocation.Devices.Results[0].Driver = "other.example"
	for name, c := range map[string]struct {
		spec    v1alpha1.VGPUProfileSpec
		claims  []client.Object
		tainted bool // the second GPU
		free    int32
	}{
		"nothing is held": {software, nil, false, 4},
		"a share is held": {software, []client.Object{claim("a", "gpu-0-shared-p", "15Gi")}, false, 3},
		"a share larger than the profile's is held": {software, []client.Object{claim("a", "gpu-0-shared-p", "26Gi")}, false, 2},
		"both shares of one GPU are held": {software, []client.Object{claim("a", "gpu-0-shared-p", "15Gi"),
			claim("b", "gpu-0-shared-p", "15Gi")}, false, 2},
		"a GPU is held whole":                      {software, []client.Object{claim("a", "gpu-1", "")}, false, 2},
		"a GPU is held in a share of another kind": {software, []client.Object{claim("a", "gpu-1-shared", "1Gi")}, false, 2},
		"a GPU is tainted":                         {software, nil, true, 2},
		"an administrator looks at a GPU":          {software, []client.Object{admin}, false, 4},
		"another driver's device is held":          {software, []client.Object{elsewhere}, false, 4},
		"a claim has no devices yet": {software,
			[]client.Object{&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "new"}}}, false, 4},
		"a MIG device of two slots is held":       {mig, []client.Object{claim("a", "gpu-0-mig-2g10gb-14-2", "")}, false, 12},
		"a GPU is held whole, and MIG is counted": {mig, []client.Object{claim("a", "gpu-0", "")}, false, 7},
		"a share is held, and GPUs are counted":   {exclusive, []client.Object{claim("a", "gpu-0-shared-p", "15Gi")}, false, 1},
		"everything is held":                      {exclusive, []client.Object{claim("a", "gpu-0", ""), claim("b", "gpu-1", "")}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			objects := published(t, "n1", 2, devices.Profile{Name: "p", Share: devices.Share{Memory: 15 << 30, Cores: 10}})
			for _, o := range objects {
				all := o.(*resourceapi.ResourceSlice).Spec.Devices
				for i := range all {
					if c.tainted && gpu(all[i]) == "gpu-1" {
						all[i].Taints = []resourceapi.DeviceTaint{{Key: "gpufabric.io/unhealthy", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
					}
				}
			}
			k := api(append(append(objects, c.claims...), profile("p", c.spec))...)
			r := &profiles{client: k, reader: k, claims: &claims{reader: k, now: time.Now}, now: time.Now}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "p"}}); err != nil {
				t.Fatal(err)
			}
			var p v1alpha1.VGPUProfile
			if err := k.Get(t.Context(), types.NamespacedName{Name: "p"}, &p); err != nil {
				t.Fatal(err)
			}
			if p.Status.Free != c.free || len(p.Status.Nodes) != 1 || p.Status.Nodes[0].Free != c.free {
				t.Errorf("free %d, on nodes %+v; want %d", p.Status.Free, p.Status.Nodes, c.free)
			}
		})
	}
}

func TestClaimsAreReadOnceForAllProfiles(t *testing.T) {
	now := time.Unix(1763000000, 0)
	k := api(claim("a", "gpu-0", ""))
	c := &claims{reader: k, now: func() time.Time { return now }}
	count := func() int {
		t.Helper()
		h, err := c.allocated(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(h)
	}
	if n := count(); n != 1 {
		t.Fatalf("%d devices are held, want 1", n)
	}
	if err := k.Create(t.Context(), claim("b", "gpu-1", "")); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("%d devices: claims were read again at once", n)
	}
	now = now.Add(heldFor)
	if n := count(); n != 2 {
		t.Errorf("%d devices after %s, want 2", n, heldFor)
	}
}

func TestControllerWritesThePolicyOnTheClass(t *testing.T) {
	p := profile("p", v1alpha1.VGPUProfileSpec{Mode: v1alpha1.VGPUExclusive, Policy: v1alpha1.VGPUSpread})
	k := api(p)
	r := &profiles{client: k, reader: k, claims: &claims{reader: k, now: time.Now}, now: time.Now}
	key := types.NamespacedName{Name: "p"}
	reconciled := func(policy v1alpha1.VGPUPolicy) *resourceapi.DeviceClass {
		t.Helper()
		var live v1alpha1.VGPUProfile
		if err := k.Get(t.Context(), key, &live); err != nil {
			t.Fatal(err)
		}
		live.Spec.Policy = policy
		if err := k.Update(t.Context(), &live); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		class := &resourceapi.DeviceClass{}
		if err := k.Get(t.Context(), key, class); err != nil {
			t.Fatal(err)
		}
		return class
	}
	class := reconciled(v1alpha1.VGPUSpread)
	if got := class.Annotations[v1alpha1.VGPUPolicyAnnotation]; got != "Spread" {
		t.Errorf("the class says policy %q, want Spread", got)
	}
	class.Annotations["theirs"], class.Labels = "kept", map[string]string{"theirs": "kept"}
	if err := k.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	class = reconciled(v1alpha1.VGPUBinpack)
	if got := class.Annotations[v1alpha1.VGPUPolicyAnnotation]; got != "Binpack" {
		t.Errorf("the class says policy %q, want Binpack", got)
	}
	class = reconciled("")
	if got, ok := class.Annotations[v1alpha1.VGPUPolicyAnnotation]; ok {
		t.Errorf("the class still says policy %q", got)
	}
	if class.Annotations["theirs"] != "kept" || class.Labels["theirs"] != "kept" {
		t.Errorf("what others wrote on the class is gone: %v, %v", class.Annotations, class.Labels)
	}
}
