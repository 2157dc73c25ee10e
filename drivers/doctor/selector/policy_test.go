package selector_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/cel-go/cel"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// policy is the policy of docs/remediation.md, evaluated as NVSentinel's Kubernetes Object Monitor does: by CEL, with the object as
// `resource`.
type policy struct {
	broken, node cel.Program
	fatal        bool
}

func readPolicy(t *testing.T) policy {
	t.Helper()
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
			HealthEvent                struct{ IsFatal bool }
		}
	}
	if err := yaml.Unmarshal(block[1], &values); err != nil {
		t.Fatal(err)
	}
	policies := values["kubernetes-object-monitor"].Policies
	if len(policies) != 1 {
		t.Fatalf("policies: %+v", policies)
	}
	p := policies[0]
	return policy{compile(t, "resource", p.Predicate.Expression), compile(t, "resource", p.NodeAssociation.Expression), p.HealthEvent.IsFatal}
}

// compile compiles an expression over one variable.
func compile(t *testing.T, variable, expression string) cel.Program {
	t.Helper()
	env, err := cel.NewEnv(cel.Variable(variable, cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	checked, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(checked)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// evaluate returns the value of an expression on a slice.
func evaluate(t *testing.T, program cel.Program, s *resourceapi.ResourceSlice) any {
	t.Helper()
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

func TestRemediationPolicySelectsSlicesWithBrokenGPUs(t *testing.T) {
	p := readPolicy(t)
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
		if got := evaluate(t, p.broken, s); got != c.want {
			t.Errorf("%s: broken is %v, want %v", name, got, c.want)
		}
		if got := evaluate(t, p.node, s); got != node {
			t.Errorf("%s: the node is %v", name, got)
		}
	}
}

// sentinel plays two modules of NVSentinel 1.28 on ResourceSlices, by their public source. The Kubernetes Object Monitor sends a health
// event when an object begins or ceases to match a policy, and takes a deleted object for a healthy one (its pkg/controller/reconciler.go).
// Fault quarantine cordons a node for a fatal event of the monitor, and uncordons it when all objects that it had events of are healthy
// (the rule sets in its chart's values.yaml).
type sentinel struct {
	policy
	fatal   bool
	matched map[string]string          // the node, by the slice's name
	against map[string]map[string]bool // the slices against each cordoned node
	log     []string
}

func (s *sentinel) observe(t *testing.T, slice *resourceapi.ResourceSlice, deleted bool) {
	t.Helper()
	at, was := s.matched[slice.Name]
	matches := !deleted && evaluate(t, s.broken, slice) == true
	switch {
	case matches && !was:
		at, _ = evaluate(t, s.node, slice).(string)
		s.matched[slice.Name] = at
		s.quarantine(slice.Name, at, false)
	case !matches && was:
		delete(s.matched, slice.Name)
		s.quarantine(slice.Name, at, true)
	}
}

func (s *sentinel) quarantine(slice, node string, healthy bool) {
	s.log = append(s.log, fmt.Sprintf("%s healthy=%t", slice, healthy))
	switch cordoned := s.against[node]; {
	case !healthy && s.fatal && cordoned == nil:
		s.against[node] = map[string]bool{slice: true}
		s.log = append(s.log, "cordon "+node)
	case !healthy && s.fatal:
		cordoned[slice] = true
	case healthy && cordoned != nil:
		if delete(cordoned, slice); len(cordoned) == 0 {
			delete(s.against, node)
			s.log = append(s.log, "uncordon "+node)
		}
	}
}

// A GPU breaks, is repeatedly published, and is repaired by a reset; then the slices are removed and come back, as they do when the plugin
// is away for half a minute.
func TestRemediationPolicyCordonsANodeUntilItsGPUIsRepaired(t *testing.T) {
	node := "n1"
	slice := func(name string, xid bool) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &node,
			Devices: []resourceapi.Device{{Name: "gpu-" + name}}}}
		s.Name = name
		if xid {
			s.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: "NoSchedule"}}
		}
		return s
	}
	for _, fatal := range []bool{false, true} {
		s := &sentinel{policy: readPolicy(t), fatal: fatal, matched: map[string]string{}, against: map[string]map[string]bool{}}
		if s.policy.fatal {
			t.Error("the page's policy cordons a node for one GPU; isFatal is false there")
		}
		for _, step := range []struct {
			slice   *resourceapi.ResourceSlice
			deleted bool
		}{
			{slice("a", false), false}, {slice("b", false), false}, // sound
			{slice("a", true), false}, {slice("a", true), false}, {slice("b", true), false}, // two GPUs break
			{slice("a", false), false}, {slice("b", false), false}, // reset
			{slice("a", true), false}, {slice("a", true), true}, // broken, and the plugin is away
			{slice("c", true), false}, // back, under another name
		} {
			s.observe(t, step.slice, step.deleted)
		}
		want := []string{"a healthy=false", "b healthy=false", "a healthy=true", "b healthy=true", "a healthy=false", "a healthy=true",
			"c healthy=false"}
		if fatal {
			want = []string{"a healthy=false", "cordon n1", "b healthy=false", "a healthy=true", "b healthy=true", "uncordon n1",
				"a healthy=false", "cordon n1", "a healthy=true", "uncordon n1", "c healthy=false", "cordon n1"}
		}
		if !slices.Equal(s.log, want) {
			t.Errorf("isFatal %t: %q, want %q", fatal, s.log, want)
		}
	}
}
