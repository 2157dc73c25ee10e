package charts

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"gpufabric.io/drivers/node/capability"
)

// guard is what restricts a right of testdata/rbac.txt to what its role writes, where RBAC alone allows more. Exactly one field
// is set.
type guard struct {
	// policy is the ValidatingAdmissionPolicy, without gpufabric-.
	policy string
	// named: RBAC itself restricts the right to one object, by its name.
	named bool
	// reason is why the right needs no more.
	reason string
}

const summed = "the status is the controller's to write, grants nothing, and is made again of what nodes report"

// guards has one for each line of testdata/rbac.txt that lets a role write, by the line without its verbs.
func guards() map[string]guard {
	all := map[string]guard{
		"gpufabric-compute-domain-plugin everywhere: nodes": {policy: "compute-domain-nodes"},

		"gpufabric-controller everywhere: computedomains.resource.nvidia.com":        {policy: "controller-domains"},
		"gpufabric-controller everywhere: computedomains/status.resource.nvidia.com": {reason: summed},
		"gpufabric-controller everywhere: deviceclasses.resource.k8s.io":             {policy: "controller-classes"},
		"gpufabric-controller everywhere: events":                                    {policy: "own-events"},
		"gpufabric-controller everywhere: miglayouts.gpufabric.io":                   {policy: "controller-layouts"},
		"gpufabric-controller everywhere: miglayouts/status.gpufabric.io":            {policy: "controller-node-entries"},
		"gpufabric-controller everywhere: nicclusterpolicies/status.mellanox.com":    {reason: summed},
		"gpufabric-controller everywhere: nodes":                                     {policy: "controller-nodes"},
		"gpufabric-controller everywhere: rdmapools.gpufabric.io":                    {policy: "controller-pools"},
		"gpufabric-controller everywhere: rdmapools/status.gpufabric.io":             {policy: "controller-node-entries"},
		"gpufabric-controller everywhere: resourceclaimtemplates.resource.k8s.io":    {policy: "controller-templates"},
		"gpufabric-controller everywhere: validatingwebhookconfigurations.admissionregistration.k8s.io named gpufabric-webhook": {
			policy: "controller-webhook"},
		"gpufabric-controller in gpufabric-system: secrets named gpufabric-webhook-certificate": {named: true},
		"gpufabric-controller in gpufabric-system: secrets named gpufabric-imex-authority":      {named: true},
		"gpufabric-controller in gpufabric-system: secrets":                                     {policy: "controller-secrets"},
		"gpufabric-controller everywhere: vgpuprofiles/status.gpufabric.io":                     {reason: summed},
		"gpufabric-controller in gpufabric-system: daemonsets.apps":                             {policy: "controller-daemonsets"},
		"gpufabric-controller in gpufabric-system: computedomains.resource.nvidia.com":          {policy: "controller-cliques"},
		"gpufabric-controller in gpufabric-system: networkpolicies.networking.k8s.io": {
			policy: "controller-network-policies"},
		"gpufabric-controller in gpufabric-system: leases.coordination.k8s.io":                            {policy: "own-leases"},
		"gpufabric-controller in gpufabric-system: leases.coordination.k8s.io named gpufabric-controller": {named: true},

		"gpufabric-gpu-plugin everywhere: miglayouts/status.gpufabric.io": {policy: "mig-layouts"},
		"gpufabric-gpu-plugin everywhere: nodes/status":                   {policy: "gpu-nodes"},

		"gpufabric-imex-daemon in gpufabric-system: events": {policy: "own-events"},

		"gpufabric-rdma-plugin everywhere: rdmapools/status.gpufabric.io": {policy: "rdma-pools"},

		"gpufabric-scheduler everywhere: nodes":                                                         {policy: "scheduler-nodes"},
		"gpufabric-scheduler in gpufabric-system: leases.coordination.k8s.io":                           {policy: "own-leases"},
		"gpufabric-scheduler in gpufabric-system: leases.coordination.k8s.io named gpufabric-scheduler": {named: true},

		"gpufabric-uninstall everywhere: computedomains.resource.nvidia.com": {policy: "uninstall-domains"},
		"gpufabric-uninstall everywhere: nodes":                              {policy: "uninstall-nodes"},

		"gpufabric-uninstall-check everywhere: computedomains.resource.nvidia.com": {policy: "uninstall-every-domain"},

		"gpufabric-uninstall-check in gpufabric-system: deployments.apps named gpufabric-controller": {policy: "uninstall-controller"},

		"gpufabric-gpu-plugin everywhere: pods/status":                                    {policy: "vgpu-refused-pods"},
		"gpufabric-vgpu-plugin everywhere: events":                                        {policy: "own-events"},
		"gpufabric-vgpu-plugin everywhere: nodes":                                         {policy: "vgpu-nodes"},
		"gpufabric-vgpu-plugin everywhere: pods":                                          {policy: "vgpu-pods"},
		"gpufabric-vgpu-plugin everywhere: pods/status":                                   {policy: "vgpu-refused-pods"},
		"gpufabric-vgpu-plugin in gpufabric-system: configmaps":                           {policy: "vgpu-unit"},
		"gpufabric-vgpu-plugin in gpufabric-system: configmaps named gpufabric-vgpu-unit": {policy: "vgpu-unit"},
	}
	for _, plugin := range []struct{ role, driver string }{
		{"compute-domain", "compute-domain.nvidia.com"}, {"gpu", "gpu.nvidia.com"}, {"rdma", "rdma.gpufabric.io"},
	} {
		role := "gpufabric-" + plugin.role + "-plugin everywhere: "
		all[role+"events"] = guard{policy: "own-events"}
		all[role+"resourceslices.resource.k8s.io"] = guard{policy: "own-slices"}
		all[role+"resourceclaims/status.resource.k8s.io"] = guard{policy: "own-claim-status"}
		all[role+"resourceclaims/driver.resource.k8s.io named "+plugin.driver] = guard{reason: "no object: with it the API server itself " +
			"keeps the right above to this driver's entries on this node"}
	}
	return all
}

// right is one line of testdata/rbac.txt.
type right struct {
	line     string // without the verbs
	role     string // the service account
	resource schema.GroupResource
	writes   []admissionv1.OperationType
}

// operations are the admission operations of the verbs that write.
var operations = map[string]admissionv1.OperationType{
	"create": admissionv1.Create, "update": admissionv1.Update, "patch": admissionv1.Update, "associated-node:patch": admissionv1.Update,
	"delete": admissionv1.Delete, "deletecollection": admissionv1.Delete,
}

// writers are the lines that let a role write.
func writers(t *testing.T) []right {
	t.Helper()
	golden, err := os.ReadFile("testdata/rbac.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []right
	for line := range strings.Lines(string(golden)) {
		line = strings.TrimSpace(line)
		cut := strings.LastIndex(line, " ")
		one := right{line: line[:cut], role: strings.Fields(line)[0]}
		_, what, _ := strings.Cut(one.line, ": ")
		one.resource = schema.ParseGroupResource(strings.Fields(what)[0])
		for verb := range strings.SplitSeq(line[cut+1:], ",") {
			if operation, ok := operations[verb]; ok {
				one.writes = append(one.writes, operation)
			}
		}
		if last := len(out) - 1; last >= 0 && out[last].line == one.line { // two rules of a role
			out[last].writes = append(out[last].writes, one.writes...)
		} else if len(one.writes) > 0 {
			out = append(out, one)
		}
	}
	return out
}

// TestWriteRightsHavePolicyOrReason walks the golden file of rights. A new right to write fails here until it has
// an attack in TestPoliciesRefuseForeignWritesWithRoleTokens, and either a reason or a policy for its role, its resource and its verbs.
func TestWriteRightsHavePolicyOrReason(t *testing.T) {
	policies := map[string]*admissionv1.ValidatingAdmissionPolicy{}
	bound := map[string]bool{}
	for _, object := range renderValues(t, "gpufabric", everyRight()) {
		switch object.GetKind() {
		case "ValidatingAdmissionPolicy":
			policy := &admissionv1.ValidatingAdmissionPolicy{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, policy); err != nil {
				t.Fatal(err)
			}
			policies[strings.TrimPrefix(policy.Name, "gpufabric-")] = policy
		case "ValidatingAdmissionPolicyBinding":
			bound[strings.TrimPrefix(object.GetName(), "gpufabric-")] = true
		}
	}
	guards, tried := guards(), attacks()
	for _, right := range writers(t) {
		guard, found := guards[right.line]
		delete(guards, right.line)
		switch {
		case !found:
			t.Errorf("%s may write, and nothing keeps it to what its role writes: give it an admission policy, or a reason here", right.line)
			continue
		case guard.reason != "":
			continue
		case len(tried[right.line]) == 0:
			t.Errorf("%s: no attack tries to use it for something else", right.line)
			continue
		}
		delete(tried, right.line)
		switch {
		case guard.named:
			continue
		case policies[guard.policy] == nil || !bound[guard.policy]:
			t.Errorf("%s: no policy gpufabric-%s is rendered and bound", right.line, guard.policy)
			continue
		}
		for _, operation := range right.writes {
			if !covers(policies[guard.policy], right, operation) {
				t.Errorf("%s: the policy gpufabric-%s does not look at %s", right.line, guard.policy, operation)
			}
		}
	}
	for line := range guards {
		t.Errorf("%s is guarded, and no such right is left", line)
	}
	for line := range tried {
		t.Errorf("%s is attacked, and no such right is left", line)
	}
}

// covers reports whether a policy checks an operation of a role.
func covers(policy *admissionv1.ValidatingAdmissionPolicy, right right, operation admissionv1.OperationType) bool {
	speaks := false
	for _, condition := range policy.Spec.MatchConditions {
		speaks = speaks || strings.Contains(condition.Expression, ":"+right.role+`"`)
	}
	if !speaks || *policy.Spec.FailurePolicy != admissionv1.Fail {
		return false
	}
	for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
		for _, resource := range rule.Resources {
			if resource != right.resource.Resource || rule.APIGroups[0] != right.resource.Group {
				continue
			}
			if slices.Contains(rule.Operations, operation) {
				return true
			}
		}
	}
	return false
}

// attack is one use of a role's stolen token.
type attack struct {
	name    string
	try     attempt
	refused string // a part of the refusal
}

// TestPoliciesRefuseForeignWritesWithRoleTokens uses each right with a token of the role's own service account, bound to a pod on node-a
// as the kubelet's are, for what the role never writes.
func TestPoliciesRefuseForeignWritesWithRoleTokens(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	for gate, flags := range map[string][]string{"true": nil /* its default */, "false": olderWays()} {
		t.Run("with the API server's DRAResourceClaimGranularStatusAuthorization "+gate, func(t *testing.T) {
			live := startServer(t, flags...)
			values := everyRight()
			live.installChart(t, values)
			live.prey(t)
			live.installHooks(t, values)
			attacks := attacks()
			clients := map[string]dynamic.Interface{}
			for _, right := range writers(t) {
				for _, attack := range attacks[right.line] {
					if clients[right.role] == nil {
						clients[right.role] = live.token(t, right.role)
					}
					err := refusal(t, clients[right.role], attack.try)
					want := attack.refused
					if gate == "true" && strings.Contains(right.line, "resourceclaims/status") {
						want = " requires resource=\"resourceclaims/" // the API server refuses by itself
					}
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %s: got %v, want an error with %q", right.line, attack.name, err, want)
						continue
					}
					t.Logf("attacker sees: %v", err)
				}
			}
			for role, driver := range map[string]string{"gpu": "gpu.nvidia.com", "rdma": "rdma.gpufabric.io",
				"compute-domain": "compute-domain.nvidia.com"} {
				asked := capability.Server{Client: live.typed(t, "gpufabric-"+role+"-plugin"), Driver: driver, Node: "node-a", Pool: "node-a-" + role}
				if missing, err := asked.Missing(t.Context()); err != nil || missing.Any() {
					t.Errorf("%s-plugin asks which fields the server keeps: missing %v, error %v", role, missing, err)
				}
			}
			// A policy that refuses a role's write hides it from a user who waits for it.
			for _, own := range []string{
				event("controller", "", "ComputeDomain", "made"),
				strings.Replace(event("controller", "", "Pod", "there"), `"reason": "R"`, `"reason": "NoSuchForm"`, 1),
			} {
				if err := tryCreate(eventResource, own)(t.Context(), clients["gpufabric-controller"]); err != nil {
					t.Errorf("the controller's own Event is refused: %v", err)
				}
			}
		})
	}
}

func tryCreate(resource schema.GroupVersionResource, body string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		one := object(body)
		_, err := client.Resource(resource).Namespace(one.GetNamespace()).Create(ctx, one,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
}

// replace updates an object, whatever its version.
func replace(resource schema.GroupVersionResource, space, name, body string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		one := object(body)
		one.SetName(name)
		if standing, err := client.Resource(resource).Namespace(space).Get(ctx, name, metav1.GetOptions{}); err == nil {
			one.SetResourceVersion(standing.GetResourceVersion())
		}
		_, err := client.Resource(resource).Namespace(space).Update(ctx, one, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
}

// text is an object as JSON.
func text(one *unstructured.Unstructured) string {
	written, err := one.MarshalJSON()
	if err != nil {
		panic(err) // a mistake in these tests
	}
	return string(written)
}
