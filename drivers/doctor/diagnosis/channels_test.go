package diagnosis_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/doctor/diagnosis"
)

//shows:doctor cd-several
func TestAPodThatNoChannelIsLeftForIsToldSo(t *testing.T) {
	s := large(2)
	for i := range s.Slices {
		if s.Slices[i].Spec.Driver == computedomain.Driver {
			attributes := s.Slices[i].Spec.Devices[0].Attributes
			attributes[computedomain.AttributeAllHeld] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
			attributes[computedomain.HeldBy("another")] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
		}
	}
	c := claim("c", computedomain.ChannelClass, 1)
	c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: computedomain.FreeFor(types.UID("late"))}}}
	s.Claims = append(s.Claims, *c)
	s.Pods = append(s.Pods, *pod("late", "", "c"))
	r, err := diagnosis.Diagnose(s, diagnosis.Subject{Kind: diagnosis.Pod, Namespace: tenant, Name: "late"})
	if err != nil || r.First == nil || r.First.Code != "NoSuchDevice" ||
		!strings.Contains(r.First.Says, "on 2 nodes other domains hold all IMEX channels") {
		t.Errorf("found %+v (%v)", r.First, err)
	}
}
