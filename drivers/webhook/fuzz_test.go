package webhook

import (
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// FuzzHandle sends whole reviews to the webhook: whatever they contain, it answers, with a reason within its limit.
func FuzzHandle(f *testing.F) {
	const claim = `{"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}], "config": ` +
		`[{"opaque": ` +
		`{"driver": "gpu.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}}}]}}}`
	f.Add("resource.k8s.io", "v1", "ResourceClaim", "CREATE", claim, "")
	f.Add("resource.k8s.io", "v1", "ResourceClaimTemplate", "UPDATE", `{"spec": {"spec": {}}}`, claim)
	f.Add("resource.k8s.io", "v1", "DeviceClass", "CREATE", `{"spec": {"config": []}}`, "")
	f.Add("gpufabric.io", "v1alpha1", "RDMAPool", "CREATE", `{"spec": {"rdmaHcaMax": -1}}`, "null")
	f.Add("gpufabric.io", "v1alpha1", "MIGLayout", "CREATE", `{"spec": {"config": {"layouts": {"a": [{}]}}}}`, "")
	f.Add("gpufabric.io", "v1alpha1", "VGPUProfile", "CREATE", `{"spec": {"memory": "1e99"}}`, "")
	f.Add("resource.nvidia.com", "v1beta1", "ComputeDomain", "CREATE", `{"spec": {"numNodes": 19}}`, "")
	reviewer := Reviewer{Cliques: NewCliques(rack(2, 1))}
	f.Fuzz(func(t *testing.T, group, version, kind, operation, object, old string) {
		answer := reviewer.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			UID: "u", Operation: admissionv1.Operation(operation), Kind: metav1.GroupVersionKind{Group: group, Version: version, Kind: kind},
			Object: runtime.RawExtension{Raw: []byte(object)}, OldObject: runtime.RawExtension{Raw: []byte(old)},
		}})
		if !answer.Allowed && (answer.Result == nil || len(answer.Result.Message) > 2*maxReason) {
			t.Errorf("refused with %+v", answer.Result)
		}
	})
}
