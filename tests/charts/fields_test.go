package charts

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestPoliciesCompareEveryFieldOfAPI walks the fields of the API's own types. CEL compares by field, so a field that a later
// version of Kubernetes adds is one that the role may write, until it is added here and there.
func TestPoliciesCompareEveryFieldOfAPI(t *testing.T) {
	values := everything()
	values["scheduler"] = map[string]any{"enabled": true, "nodeLock": true}
	text := map[string]string{}
	for _, object := range renderValues(t, "gpufabric", values) {
		if object.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		validations, _, err := unstructured.NestedSlice(object.Object, "spec", "validations")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range validations {
			text[object.GetName()] += one.(map[string]any)["expression"].(string) + "\n"
		}
	}
	for _, test := range []struct {
		policy, prefix string
		of             any
		free           []string // what the role writes, or the policy compares otherwise
	}{
		{"gpu-nodes", "object.?status.?", corev1.NodeStatus{}, []string{"conditions"}},
		{"vgpu-refused-pods", "object.status.?", corev1.PodStatus{}, []string{"phase", "reason", "message"}},
		// A template has no ephemeral containers.
		{"uninstall-controller", "variables.pod.?", corev1.PodSpec{}, []string{"containers", "ephemeralContainers"}},
		{"uninstall-controller", "variables.pod.containers[0].?", corev1.Container{}, []string{"args"}},
	} {
		kind := reflect.TypeOf(test.of)
		for i := range kind.NumField() {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			if !slices.Contains(test.free, name) && !strings.Contains(text["gpufabric-"+test.policy], test.prefix+name+" == ") {
				t.Errorf("the policy gpufabric-%s does not compare %s of %s", test.policy, name, kind)
			}
		}
	}
}
