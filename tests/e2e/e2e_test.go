package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gruntwork-io/terratest/modules/terraform"
)

// TestTerraformServesComputeDomainsToPods is one sequence: each part needs those before it.
func TestTerraformServesComputeDomainsToPods(t *testing.T) {
	e := newEnvironment(t)
	stack := quickstart(t, e)
	terraform.Init(t, stack)

	started := time.Now()
	terraform.Apply(t, stack)
	measured(t, "terraform apply of the quickstart", time.Since(started))

	for _, part := range []struct {
		name string
		run  func(*testing.T, *environment)
	}{
		{"a second plan changes nothing", func(t *testing.T, _ *environment) { changesNothing(t, stack) }},
		{"a node without a GPU is served and gets no clique", testPlainNode},
		{"the seed's manifest runs unchanged and its pod sees channel0", testSeedManifest},
		{"the quickstart's domain becomes ready on two nodes", testTwoNodeDomain},
		{"a deleted domain leaves nothing", testDeletion},
		{"bad domains are refused with the field named", testRefusals},
		{"a claim of another namespace never gets a channel", testForeignNamespace},
		{"an upgrade and a rollback of the chart leave pods alone", testUpgradeAndRollback},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, e) })
	}

	t.Run("terraform destroy leaves nothing", func(t *testing.T) {
		started := time.Now()
		terraform.Destroy(t, stack)
		measured(t, "terraform destroy of the quickstart", time.Since(started))
		e.vanish(t, "what came with the drivers", e.installed)
	})
}

// testPlainNode looks at the control plane, whose node plugin finds no fabric.
func testPlainNode(t *testing.T, e *environment) {
	node := e.Nodes[0]
	e.eventually(t, "the plugin on "+node+" to run without a crash", func(ctx context.Context) (bool, string, error) {
		got, err := e.Kubectl(ctx, nil, "--namespace", "gpufabric-system", "get", "pods", "--selector",
			"app.kubernetes.io/component=compute-domain-plugin", "--field-selector", "spec.nodeName="+node, "--output", roleFormat)
		if err != nil || strings.TrimSpace(got) == "" {
			return false, got, err
		}
		_, plugin := parseRole(got)
		return plugin.phase == "Running" && !plugin.crashed(), got, nil
	})
	if clique := e.kubectl(t, "get", "node", node, "--output", `jsonpath={.metadata.labels.nvidia\.com/gpu\.clique}`); clique != "" {
		t.Errorf("%s has no GPU and is labelled with the clique %q", node, clique)
	}
}

// testUpgradeAndRollback changes a value of the running release with plain Helm and takes the change back.
func testUpgradeAndRollback(t *testing.T, e *environment) {
	const release, namespace, daemonset = "gpufabric", "gpufabric-system", "daemonset/gpufabric-compute-domain-plugin"
	helm := func(args ...string) {
		t.Helper()
		_, err := e.Helm(t.Context(), e.printer, append(args, "--namespace", namespace, "--wait", "--timeout", patience.String())...)
		must(t, err)
	}
	arguments := func() string {
		t.Helper()
		return e.kubectl(t, "--namespace", namespace, "get", daemonset, "--output", "jsonpath={.spec.template.spec.containers[0].args}")
	}
	e.apply(t, member("bystander-a", e.Workers()[0])+"---\n"+member("bystander-b", e.Workers()[1]))
	e.kubectl(t, "wait", "pod/bystander-a", "pod/bystander-b", "--for=condition=Ready", inTime)
	before := arguments()

	helm("upgrade", release, filepath.Join(e.root, "charts/gpufabric"), "--reset-then-reuse-values", "--set", "log.verbosity=4")
	if arguments() == before {
		t.Errorf("the upgrade changed nothing: %s", before)
	}
	helm("rollback", release)
	if got := arguments(); got != before {
		t.Errorf("after the rollback the plugin has %s, before the upgrade %s", got, before)
	}
	for _, pod := range []string{"bystander-a", "bystander-b"} {
		if got := e.kubectl(t, "get", "pod", pod, "--output",
			"jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"); got != "Running 0" {
			t.Errorf("%s is %q, want it to run on", pod, got)
		}
	}
	// The new plugin unprepares what the old one prepared.
	uids := e.claimUIDs(t, "bystander-a", "bystander-b")
	e.kubectl(t, "delete", "pod/bystander-a", "pod/bystander-b", inTime)
	e.vanish(t, "claims that were prepared before the upgrade", func(ctx context.Context) ([]string, error) { return e.traces(ctx, uids...) })
}
