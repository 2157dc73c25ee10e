package selector_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/cel-go/cel"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// The policy of docs/remediation.md is evaluated as NVSentinel's Kubernetes Object Monitor does: by CEL, with the object as `resource`.
func TestRemediationPolicySelectsSlicesWithBrokenGPUs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/remediation.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/remediation.md has no policy")
	}
	var values map[string]struct {
		Policies []struct {
			Predicate, NodeAssociation struct{ Expression string }
		}
	}
	if err := yaml.Unmarshal(block[1], &values); err != nil {
		t.Fatal(err)
	}
	policies := values["kubernetes-object-monitor"].Policies
	if len(policies) != 1 {
		t.Fatalf("policies: %+v", policies)
	}
	env, err := cel.NewEnv(cel.Variable("resource", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	evaluate := func(expression string, s *resourceapi.ResourceSlice) any {
		t.Helper()
		checked, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(checked)
		if err != nil {
			t.Fatal(err)
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Eval(map[string]any{"resource": object})
		if err != nil {
			t.Fatal(err)
		}
		return value.Value()
	}
	node := "n1"
	for name, c := range map[string]struct {
		driver string
		taint  *resourceapi.DeviceTaint
		want   bool
	}{
		"healthy":            {"gpu.nvidia.com", nil, false},
		"an XID":             {"gpu.nvidia.com", &resourceapi.DeviceTaint{Key: "gpu.nvidia.com/xid", Value: "79", Effect: "NoSchedule"}, true},
		"lost":               {"gpu.nvidia.com", &resourceapi.DeviceTaint{Key: "gpu.nvidia.com/lost", Effect: "NoExecute"}, true},
		"an XID of programs": {"gpu.nvidia.com", &resourceapi.DeviceTaint{Key: "gpu.nvidia.com/xid", Value: "31", Effect: "None"}, false},
		"drained":            {"gpu.nvidia.com", &resourceapi.DeviceTaint{Key: "gpufabric.io/drained", Effect: "NoSchedule"}, false},
		"a port":             {"rdma.gpufabric.io", &resourceapi.DeviceTaint{Key: "rdma.gpufabric.io/port-down", Effect: "NoSchedule"}, false},
		"counters alone":     {"gpu.nvidia.com", nil, false},
	} {
		s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: c.driver, NodeName: &node,
			Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}}}}
		if c.taint != nil {
			s.Spec.Devices[1].Taints = []resourceapi.DeviceTaint{*c.taint}
		}
		if name == "counters alone" {
			s.Spec.Devices, s.Spec.SharedCounters = nil, []resourceapi.CounterSet{{Name: "gpu-0"}}
		}
		if got := evaluate(policies[0].Predicate.Expression, s); got != c.want {
			t.Errorf("%s: broken is %v, want %v", name, got, c.want)
		}
		if got := evaluate(policies[0].NodeAssociation.Expression, s); got != node {
			t.Errorf("%s: the node is %v", name, got)
		}
	}
}
