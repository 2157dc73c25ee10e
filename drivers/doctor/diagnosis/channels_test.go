package diagnosis_test

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
)

func TestDiagnosisReportsMissingChannels(t *testing.T) {
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

// withFabricOnly is a cluster whose compute-domain-plugin has the flag --fabric-only, and whose nodes have no NVLink fabric.
func withFabricOnly(nodes int) *snapshot.Snapshot {
	s := large(nodes)
	s.Slices = slices.DeleteFunc(s.Slices, func(r resourceapi.ResourceSlice) bool { return r.Spec.Driver == computedomain.Driver })
	for i := range s.Slices {
		for _, d := range s.Slices[i].Spec.Devices {
			delete(d.Attributes, "cliqueID")
		}
	}
	for i := range s.DaemonSets {
		if d := &s.DaemonSets[i]; d.Labels["app.kubernetes.io/component"] == "compute-domain-plugin" {
			d.Spec.Template.Spec.Containers = slices.Clone(d.Spec.Template.Spec.Containers)
			d.Spec.Template.Spec.Containers[0].Args = []string{"compute-domain-plugin", "--fabric-only"}
		}
	}
	return s
}

func TestDoctorReportsNothingWhenNodesWithoutFabricDoNotPublishAChannel(t *testing.T) {
	r, err := diagnosis.Diagnose(withFabricOnly(2), install())
	if err != nil || r.First != nil {
		t.Errorf("found %+v (%v)", r.First, err)
	}
}

func TestDoctorExplainsChannelClaimWhenNodesWithoutFabricDoNotPublishAChannel(t *testing.T) {
	s := withFabricOnly(2)
	s.Claims = append(s.Claims, *claim("c", computedomain.ChannelClass, 1))
	s.Pods = append(s.Pods, *pod("p", "", "c"))
	r, err := diagnosis.Diagnose(s, diagnosis.Subject{Kind: diagnosis.Pod, Namespace: tenant, Name: "p"})
	if err != nil || r.First == nil || r.First.Code != "NoSuchDevice" || !strings.Contains(r.First.Says, "computeDomains.nodesWithoutFabric") {
		t.Errorf("found %+v (%v)", r.First, err)
	}
}
