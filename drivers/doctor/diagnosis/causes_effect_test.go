package diagnosis_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
)

// effectCauses are entries of values, labels and selectors that name nothing.
func effectCauses() []cause {
	const part, code = "configuration", "ConfigWithoutEffect"
	argument := func(name, value string) cause {
		return cause{part, name, install(), code, nil, func(g *ground) {
			change(g, system, "gpufabric-gpu-plugin", func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Args = []string{value} })
		}}
	}
	return []cause{
		argument("gpus.devicePlugin names a GPU that no node has", "--device-plugin=GPU-aaaaaaaa-0000-0000-0000-000000000000"),
		argument("a rule of gpus.forms.nodes selects no node",
			`--forms={"nodes":[{"nodeSelector":{"matchLabels":{"rack":"none"}},"form":"shareable"}]}`),
		{part, "a node with a label for forms has no gpu-plugin", install(), code, nil, func(g *ground) {
			bare := node("bare")
			bare.Labels["gpufabric.io/gpu-forms"], bare.Status.Conditions = "shareable", bare.Status.Conditions[:1]
			g.put(bare)
			for _, plugin := range []string{"gpu-plugin", "compute-domain-plugin", "rdma-plugin"} {
				change(g, system, "gpufabric-"+plugin, func(d *appsv1.DaemonSet) {
					d.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/arch": "arm64", "gpu": "yes"}
				})
			}
		}},
		{part, "rdma.extendedResources has a resource that is no pool's", install(), code, nil, func(g *ground) {
			c := class("rdma-hca-none",
				"device.driver == 'rdma.gpufabric.io' && device.attributes['rdma.gpufabric.io'].?pool.orValue('') == 'rdma/none'")
			c.Labels, c.Spec.ExtendedResourceName = map[string]string{"app.kubernetes.io/part-of": "gpufabric"}, ptr.To("rdma/none")
			g.put(c)
		}},
		{part, "computeDomains.owners has a kind that the cluster lacks", install(), code, nil, func(g *ground) {
			change(g, system, "gpufabric-controller", func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.Containers[0].Args = []string{"--owners=Job", "--owners=JobSet"}
			})
		}},
		{part, "a value of an RDMAPool's selectors selects no device of any node", diagnosis.Subject{Kind: diagnosis.Pool, Name: "rail"}, code,
			nil, func(g *ground) {
				g.put(&v1alpha1.RDMAPool{ObjectMeta: metav1.ObjectMeta{Name: "rail"}, Spec: v1alpha1.RDMAPoolSpec{
					RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "a", RDMAHCAMax: 1,
						Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3", "15b4"}}}},
					Status: v1alpha1.RDMAPoolStatus{
						Conditions: []metav1.Condition{{Type: v1alpha1.RDMAPoolReady, Status: metav1.ConditionTrue, Reason: "AllDevicesHealthy",
							LastTransitionTime: metav1.Now()}},
						Nodes: []v1alpha1.RDMAPoolNode{{Name: "n1", ObservedGeneration: 1, Devices: 1, HealthyDevices: 1, Units: 1,
							Unmatched: []string{"selectors.vendors[1]"}}}}})
			}},
	}
}

// An entry that names something is no finding, and neither is one that could not be looked up.
func TestDiagnoseReportsNothingWhenConfigurationMatchesDevices(t *testing.T) {
	set := daemonSet("gpu-plugin", 1)
	set.Spec.Template.Spec.Containers[0].Args = []string{"--device-plugin=GPU-here",
		`--forms={"nodes":[{"nodeSelector":{"matchLabels":{"rack":"a"}},"form":"shareable"}]}`}
	n := node("n1")
	n.Labels["rack"], n.Labels["gpufabric.io/gpu-forms"] = "a", "whole"
	s := &snapshot.Snapshot{Nodes: []corev1.Node{*n}, DaemonSets: []appsv1.DaemonSet{*set}, Slices: []resourceapi.ResourceSlice{
		*slice("s", "gpu.nvidia.com", "n1-gpu", "n1", 1, []resourceapi.Device{{Name: "gpu-0",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: ptr.To("GPU-here")}}}}, nil)}}
	unread := &snapshot.Snapshot{DaemonSets: s.DaemonSets,
		Unread: []snapshot.Unread{{Kind: "resourceslices.resource.k8s.io"}, {Kind: "nodes"}}}
	for name, s := range map[string]*snapshot.Snapshot{"named": s, "unread": unread} {
		r, err := diagnosis.Diagnose(s, install())
		if err != nil {
			t.Fatal(err)
		}
		all := codes(r.Behind)
		if r.First != nil {
			all = append(all, r.First.Code)
		}
		if slices.Contains(all, "ConfigWithoutEffect") {
			t.Errorf("%s: %v", name, all)
		}
	}
}
