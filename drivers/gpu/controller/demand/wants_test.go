package demand

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

func TestWantsFindsShapesOfRequests(t *testing.T) {
	c := newCluster(t, "n1")
	c.begin("n1")
	claim := c.claim("many", "")
	claim.Spec.Devices.Requests[0].Exactly.Count = 3
	claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "first"})
	claim.Spec.Devices.Requests[1].FirstAvailable = []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "mig.nvidia.com", Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.nvidia.com"].profile == "2g.20gb"`}}}},
		{Name: "b", DeviceClassName: "mig.nvidia.com", Count: 1, Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("30Gi")) > 0`}}}},
	}
	claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "all",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "mig.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeAll}})
	if err := c.Client.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	c.pod("p", "many", func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
	})
	c.round()
	w, err := c.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var auto *v1alpha1.MIGLayout
	for i := range w.layouts {
		if w.layouts[i].Spec.Auto != nil {
			auto = &w.layouts[i]
		}
	}
	p := c.decider.pool(w, auto, Assignment{Parents: map[string]string{"n1": "auto"}}, map[string]*edit{})
	waits, _ := c.resolve(w, p)
	var got []int
	for _, one := range waits {
		got = append(got, one.Shape)
	}
	if want := []int{0, 0, 0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("the pod waits for the shapes %v, want %v (1g.10gb three times, 3g.40gb, whole)", got, want)
	}
}
