package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// clique is the NVLink domain of the profile's nodes.
const clique = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"

// channel is the line of `ls -la` for an IMEX channel that anybody may open.
var channel = regexp.MustCompile(`(?m)^crw-rw-rw-\s.*\schannel0$`)

// computeDomain is a ComputeDomain as users read it.
type computeDomain struct {
	Metadata struct{ Name, UID string }
	Status   struct {
		Status string
		Nodes  []struct {
			Name, IPAddress, CliqueID, Status string
			Index                             *int
		}
	}
}

// testSeedManifest applies the manifest that the project was given, without changing a byte.
func testSeedManifest(t *testing.T, e *environment) {
	started := time.Now()
	e.apply(t, e.file(t, "examples/manifests/imex-channel-injection.yaml"))
	e.kubectl(t, "wait", "pod/imex-channel-injection", "--for=condition=Ready", inTime)
	measured(t, "seed manifest applied to pod running", time.Since(started))
	e.says(t, "imex-channel-injection", channel)
	e.kubectl(t, "wait", "computedomain/imex-channel-injection", "--for=jsonpath={.status.status}=Ready", inTime)
	domain := e.domain(t, "imex-channel-injection")
	if domain.Status.Status != "Ready" || len(domain.Status.Nodes) != 1 {
		t.Errorf("status %+v, want Ready with one node", domain.Status)
	}

	uids := append(e.claimUIDs(t, "imex-channel-injection"), domain.Metadata.UID)
	if traces, err := e.traces(t.Context(), uids...); err != nil || len(traces) == 0 {
		t.Errorf("while the pod runs there is no trace of %v on any node (error: %v), so nothing would tell that they go", uids, err)
	}
	e.kubectl(t, "delete", "pod/imex-channel-injection", "computedomain/imex-channel-injection", inTime)
	e.nothingLeft(t, uids...)
}

// testTwoNodeDomain runs a pod on each worker with the claim template of the quickstart's domain.
func testTwoNodeDomain(t *testing.T, e *environment) {
	started := time.Now()
	e.apply(t, member("member-a", e.Workers()[0])+"---\n"+member("member-b", e.Workers()[1]))
	e.kubectl(t, "wait", "computedomain/quickstart", "--for=jsonpath={.status.status}=Ready", inTime)
	measured(t, "pods of a two-node domain created to domain ready", time.Since(started))
	e.kubectl(t, "wait", "pod/member-a", "pod/member-b", "--for=condition=Ready", inTime)
	measured(t, "pods of a two-node domain created to both running", time.Since(started))
	for _, pod := range []string{"member-a", "member-b"} {
		e.says(t, pod, channel)
	}

	domain := e.domain(t, "quickstart")
	var names []string
	indices := map[int]bool{}
	for _, node := range domain.Status.Nodes {
		names = append(names, node.Name)
		if _, err := netip.ParseAddr(node.IPAddress); err != nil {
			t.Errorf("node %s: address %q: %v", node.Name, node.IPAddress, err)
		}
		if node.CliqueID != clique {
			t.Errorf("node %s: cliqueID %q, want %q", node.Name, node.CliqueID, clique)
		}
		if node.Status != "Ready" {
			t.Errorf("node %s: status %q, want Ready", node.Name, node.Status)
		}
		if node.Index == nil || *node.Index < 0 || indices[*node.Index] {
			t.Errorf("node %s: index %v is missing, negative or taken", node.Name, node.Index)
			continue
		}
		indices[*node.Index] = true
	}
	slices.Sort(names)
	if !slices.Equal(names, e.Workers()) {
		t.Errorf("nodes %v in the status, want %v", names, e.Workers())
	}
	for _, worker := range e.Workers() {
		if got := e.kubectl(t, "get", "node", worker, "--output", `jsonpath={.metadata.labels.nvidia\.com/gpu\.clique}`); got != clique {
			t.Errorf("label nvidia.com/gpu.clique of %s is %q, want %q", worker, got, clique)
		}
	}
}

// testDeletion makes a domain by manifest, uses it on two nodes, deletes everything, and looks for leftovers.
func testDeletion(t *testing.T, e *environment) {
	e.apply(t, `{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: short-lived},
		spec: {numNodes: 2, channel: {resourceClaimTemplate: {name: short-lived-channel}}}}`)
	e.kubectl(t, "wait", "resourceclaimtemplate/short-lived-channel", "--for=create", inTime)
	pods := memberOf("short-lived-a", e.Workers()[0], "short-lived-channel") + "---\n" +
		memberOf("short-lived-b", e.Workers()[1], "short-lived-channel")
	e.apply(t, pods)
	e.kubectl(t, "wait", "pod/short-lived-a", "pod/short-lived-b", "--for=condition=Ready", inTime)
	uids := append(e.claimUIDs(t, "short-lived-a", "short-lived-b"), e.domain(t, "short-lived").Metadata.UID)

	started := time.Now()
	e.kubectl(t, "delete", "pod/short-lived-a", "pod/short-lived-b", "computedomain/short-lived", inTime)
	measured(t, "two pods and their domain deleted", time.Since(started))
	e.nothingLeft(t, uids...)
	if out := e.kubectl(t, "get", "resourceclaimtemplates", "--output", "name", "--ignore-not-found", "short-lived-channel"); out != "" {
		t.Errorf("the claim template %s is left", out)
	}
}

// domain reads a ComputeDomain of the default namespace.
func (e *environment) domain(t *testing.T, name string) computeDomain {
	t.Helper()
	var domain computeDomain
	e.get(t, &domain, "computedomain", name)
	return domain
}

// says waits for a text in a pod's log. A pod is Ready once its program was started, which may not have printed anything by
// then.
func (e *environment) says(t *testing.T, pod string, what *regexp.Regexp) {
	t.Helper()
	e.eventually(t, pod+" to say "+what.String(), func(ctx context.Context) (bool, string, error) {
		log, err := e.Kubectl(ctx, nil, "logs", pod)
		return what.MatchString(log), log, err
	})
}

// claimUIDs returns the UIDs of the claims that were made for the pods. It leaves out claims of an earlier pod of the same
// name, which the garbage collector has not removed yet.
func (e *environment) claimUIDs(t *testing.T, pods ...string) []string {
	t.Helper()
	var owners []string
	for _, pod := range pods {
		owners = append(owners, e.kubectl(t, "get", "pod", pod, "--output", "jsonpath={.metadata.uid}"))
	}
	var claims struct {
		Items []struct {
			Metadata struct {
				UID             string
				OwnerReferences []struct{ UID string }
			}
		}
	}
	e.get(t, &claims, "resourceclaims")
	var uids []string
	for _, claim := range claims.Items {
		for _, owner := range claim.Metadata.OwnerReferences {
			if slices.Contains(owners, owner.UID) {
				uids = append(uids, claim.Metadata.UID)
			}
		}
	}
	if len(uids) != len(pods) {
		t.Fatalf("%d claims of the pods %v, want one each", len(uids), pods)
	}
	return uids
}

// nothingLeft checks that the last of the UIDs, a domain's, is on no label, DaemonSet or claim template, and that no UID is in a file on
// any node.
func (e *environment) nothingLeft(t *testing.T, uids ...string) {
	t.Helper()
	domain := uids[len(uids)-1]
	e.vanish(t, "labels, DaemonSets and claim templates of the domain", func(ctx context.Context) ([]string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "nodes,daemonsets,resourceclaimtemplates,resourceclaims", "--all-namespaces", "--output",
			`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata}{"\n"}{end}`)
		if err != nil {
			return nil, err
		}
		var left []string
		for line := range strings.Lines(out) {
			if strings.Contains(line, domain) {
				left = append(left, strings.Fields(line)[0])
			}
		}
		return left, nil
	})
	e.vanish(t, "state and CDI files", func(ctx context.Context) ([]string, error) { return e.traces(ctx, uids...) })
}

// member is a pod on a node with a channel of the quickstart's domain.
func member(name, node string) string { return memberOf(name, node, "quickstart-channel") }

func memberOf(name, node, template string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: member
    image: ubuntu:22.04
    command: ["bash", "-c", "ls -la /dev/nvidia-caps-imex-channels; trap 'exit 0' TERM; sleep 9999 & wait"]
    resources: {claims: [{name: channel}]}
  resourceClaims: [{name: channel, resourceClaimTemplateName: %s}]
`, name, node, template)
}
