package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gruntwork-io/terratest/modules/terraform"

	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/docker"
)

// examplesOn are the directories of examples/terraform by the machine that fits each; TestTerraformServesComputeDomainsToPods
// tests the quickstart.
func (e *environment) examplesOn(machine string) []example {
	switch machine {
	case profile:
		return []example{
			{"rack", map[string]any{"domains": map[string]any{"train": map[string]any{"nodes": 2}}}, nil, testRack, false},
			{"training-job", map[string]any{"storage_class": "checkpoints", "checkpoint_size": "1Gi", "steps": 20}, checkpointVolume,
				testTrainingJob, true},
			{"rdma-cluster", map[string]any{"rails": map[string]any{"rail-0": map[string]any{"master": "eth0", "range": "10.56.0.0/16"},
				"rail-1": map[string]any{"master": "eth0", "range": "10.57.0.0/16"}}}, (*environment).secondaryNetworks, testRails, true},
		}
	case "h100-hgx":
		return []example{
			{"platform", map[string]any{"inference_nodes": map[string]any{"kubernetes.io/hostname": e.Workers()[0]}}, nil, testPlatform, true},
		}
	case "l40s-8":
		return []example{{"vgpu-sharing", nil, nil, testSlices, true}}
	}
	return nil
}

// testExamples applies each example that fits the machine, checks the result, destroys it, and checks that nothing remains.
func (e *environment) testExamples(t *testing.T, machine string) {
	for _, x := range e.examplesOn(machine) {
		t.Run("example "+x.name+" on "+machine, func(t *testing.T) {
			if x.long {
				notInShort(t)
			}
			e.turnInto(t, machine)
			if x.before != nil {
				x.before(e, t)
			}
			options := e.example(t, x)
			// Remove what it made, whatever the test finds.
			t.Cleanup(func() {
				if t.Failed() {
					_, _ = terraform.DestroyE(t, options)
				}
			})
			started := time.Now()
			terraform.InitAndApply(t, options)
			measured(t, "terraform apply of "+x.name, time.Since(started))
			changesNothing(t, options)
			x.look(t, e, options)
			started = time.Now()
			terraform.Destroy(t, options)
			measured(t, "terraform destroy of "+x.name, time.Since(started))
			e.vanish(t, "what came with the drivers", e.installed)
		})
	}
}

// example is a directory of examples/terraform.
type example struct {
	name   string
	vars   map[string]any
	before func(*environment, *testing.T) // brings what the example needs
	look   func(*testing.T, *environment, *terraform.Options)
	long   bool // it is in the long suite alone
}

// example prepares a copy of an example's directory.
func (e *environment) example(t *testing.T, x example) *terraform.Options {
	t.Helper()
	tools, err := toolchain.Ensure(t.Context(), "terraform", "kubectl")
	must(t, err)
	options := quickstart(t, e)
	fake := filepath.Join(options.TerraformDir, options.VarFiles[0])
	dir := filepath.Join(t.TempDir(), x.name)
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join(e.root, "examples/terraform", x.name))))
	for _, leftover := range []string{".terraform", ".terraform.lock.hcl", "terraform.tfstate", "terraform.tfstate.backup"} {
		must(t, os.RemoveAll(filepath.Join(dir, leftover))) // of a user who ran the example in the checkout
	}
	options.TerraformDir, options.VarFiles = dir, []string{fake}
	options.EnvVars["PATH"] = filepath.Dir(tools["kubectl"]) + string(os.PathListSeparator) + os.Getenv("PATH")
	for name, value := range x.vars {
		options.Vars[name] = value
	}
	return options
}

// turnInto replaces the workers' hardware, unless they have it already.
func (e *environment) turnInto(t *testing.T, machine string) {
	t.Helper()
	is := func(ctx context.Context, node string) (bool, string, error) {
		out, err := docker.Script(ctx, node, "cat /var/lib/fakefabric/state/rendered.json")
		return strings.Contains(out, `"`+machine+`"`), out, err
	}
	if already, _, err := is(t.Context(), e.Workers()[0]); err == nil && already {
		return
	}
	must(t, e.Equip(t.Context(), e.printer, machine))
	for _, node := range e.Workers() {
		e.eventually(t, node+" to be a "+machine, func(ctx context.Context) (bool, string, error) { return is(ctx, node) })
	}
}

// testRack checks the rack through the provider's actions: a ping between both nodes, and a restart of IMEX under a running
// domain.
func testRack(t *testing.T, e *environment, options *terraform.Options) {
	const actions = `
action "gpufabric_validate_fabric" "ping" {
  config {
    num_nodes = 2
  }
}

action "gpufabric_restart_imex" "train" {
  config {
    domain = "train"
    nodes  = [%q]
  }
}
`
	nodes := e.Workers()
	actionsOf(t, options, fmt.Sprintf(actions, nodes[0]))
	if out, err := invoke(t, options, "gpufabric_validate_fabric.ping"); err != nil ||
		!strings.Contains(out, "2 nodes share an IMEX domain: "+strings.Join(nodes, ", ")) {
		t.Errorf("the ping says %s (error: %v)", out, err)
	}
	e.apply(t, memberOf("train-a", nodes[0], "train-channel")+"---\n"+memberOf("train-b", nodes[1], "train-channel"))
	e.kubectl(t, "wait", "pod/train-a", "pod/train-b", "--for=condition=Ready", inTime)
	if out, err := invoke(t, options, "gpufabric_restart_imex.train"); err != nil ||
		!strings.Contains(out, "restarted the IMEX daemons on "+nodes[0]) {
		t.Errorf("the restart says %s (error: %v)", out, err)
	}
	e.kubectl(t, "delete", "pod/train-a", "pod/train-b", inTime)
}

// actionsOf adds actions to a copy of an example.
func actionsOf(t *testing.T, options *terraform.Options, actions string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(options.TerraformDir, "actions.tf"), []byte(actions), 0o644))
}

// invoke runs one of the example's actions and returns Terraform's output, in one line.
func invoke(t *testing.T, options *terraform.Options, action string) (string, error) {
	t.Helper()
	out, err := terraform.RunTerraformCommandE(t, options, terraform.FormatArgs(options, "apply", "-auto-approve", "-input=false", "-no-color",
		"-invoke=action."+action)...)
	return strings.Join(strings.Fields(strings.ReplaceAll(out, "│", "")), " "), err
}

// checkpointVolume is a volume of a StorageClass in which nothing is provisioned.
func checkpointVolume(e *environment, t *testing.T) {
	e.apply(t, checkpoints)
}

const checkpoints = `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: checkpoints}, provisioner: ` +
	`kubernetes.io/no-provisioner}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: checkpoints}
spec: {storageClassName: checkpoints, capacity: {storage: 1Gi}, accessModes: [ReadWriteMany], hostPath: {path: ` +
	`/var/lib/checkpoints, type: DirectoryOrCreate}}
`

var trained = regexp.MustCompile(`rank \d on \S+ starts after step \d+ with 4 GPUs and channel0`)

func testTrainingJob(t *testing.T, e *environment, options *terraform.Options) {
	e.kubectl(t, "wait", "job/training", "--for=condition=Complete", inTime)
	log := e.kubectl(t, "logs", "--selector", "training-job=training", "--prefix")
	if n := len(trained.FindAllString(log, -1)); n != 2 {
		t.Errorf("%d pods saw 4 GPUs and their channel, want 2:\n%s", n, log)
	}
	for rank, node := range e.kubectlLines(t, "get", "pods", "--selector", "training-job=training",
		"--sort-by=.metadata.annotations.batch\\.kubernetes\\.io/job-completion-index", "--output",
		"jsonpath={range .items[*]}{.spec.nodeName}{\"\\n\"}{end}") {
		if step, err := docker.Script(t.Context(), node, fmt.Sprintf("cat /var/lib/checkpoints/rank-%d", rank)); err != nil ||
			strings.TrimSpace(step) != "20" {
			t.Errorf("the checkpoint of rank %d on %s is %q (error: %v), want 20", rank, node, step, err)
		}
	}
	testBandwidth(t, e, options)
}

// testBandwidth has the provider run nvbandwidth by the real MPI operator. The stand-in opens every GPU and measures nothing,
// so the action does not confirm the fabric. It ends with the output of the ranks, and removes everything.
func testBandwidth(t *testing.T, e *environment, options *terraform.Options) {
	e.operator(t)
	actionsOf(t, options, `action "gpufabric_validate_fabric" "bandwidth" {
  config {
    num_nodes = 2
    test      = "bandwidth"
  }
}
`)
	out, err := invoke(t, options, "gpufabric_validate_fabric.bandwidth")
	if err == nil || !has(out, "Fabric not proven", "printed no sum for multinode_device_to_device_memcpy_read_ce",
		"of 8 on fabric-bandwidth-worker-") {
		t.Errorf("the bandwidth test says %s (error: %v)", out, err)
	}
	e.vanish(t, "the bandwidth test's job and pods", func(ctx context.Context) ([]string, error) {
		left, err := e.Kubectl(ctx, nil, "get", "mpijobs,pods", "--selector", "training-job!=training", "--output", "name")
		return strings.Fields(left), err
	})
}

func testRails(t *testing.T, e *environment, _ *terraform.Options) {
	for _, rail := range []string{"rail-0", "rail-1"} {
		if got := e.kubectl(t, "get", "network-attachment-definitions", rail, "--output",
			`jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/resourceName}`); got != "rdma/hca_shared_devices_a" {
			t.Errorf("%s hangs on %q", rail, got)
		}
	}
	e.eventually(t, "the controller to observe the pool", func(ctx context.Context) (bool, string, error) {
		got, err := e.Kubectl(ctx, nil, "get", "rdmapools", "--output", "jsonpath={.items[*].status.observedGeneration}")
		return got == "1", got, err
	})
	testRailsPing(t, e)
}

// testPlatform waits for the layout: eight GPUs in halves.
func testPlatform(t *testing.T, e *environment, options *terraform.Options) {
	e.eventually(t, "the layout to stand", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "miglayout", "inference", "--output", "jsonpath={.status}")
		return strings.Contains(out, `"message":"8 of 8 GPUs"`), out, err
	})
	e.eventually(t, "sixteen halves to be published", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "resourceslices", "--field-selector",
			"spec.nodeName="+e.Workers()[0]+",spec.driver=gpu.nvidia.com", "--output",
			`jsonpath={range .items[*].spec.devices[*]}{.name}{"\n"}{end}`)
		return strings.Count(out, "-mig-3g") >= 16, out, err
	})
	testRepartition(t, e, options)
}

// holdsHalf is a pod with one half of a GPU of a node.
const holdsHalf = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: half}
spec:
  devices:
    requests:
      - name: half
        exactly: {deviceClassName: mig.nvidia.com}
---
apiVersion: v1
kind: Pod
metadata: {name: holds-half}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  resourceClaims: [{name: half, resourceClaimName: half}]
  containers: [{name: c, image: "ubuntu:22.04", command: [sleep, "9999"], resources: {claims: [{name: half}]}}]
`

// testRepartition changes the layout under a pod: the node waits for it, and the provider's action evicts it.
func testRepartition(t *testing.T, e *environment, options *terraform.Options) {
	node := e.Workers()[0]
	e.apply(t, fmt.Sprintf(holdsHalf, node))
	e.kubectl(t, "wait", "pod/holds-half", "--for=condition=Ready", inTime)
	e.kubectl(t, "patch", "miglayout", "inference", "--type=merge", "--patch",
		`{"spec": {"layout": "sevenths", "config": {"mig-configs": {"sevenths": [{"devices": "all", "mig-enabled": true, "mig-devices": `+
			`{"1g.10gb": 7}}]}}}}`)
	e.eventually(t, "the layout to wait for the pod", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "miglayout", "inference", "--output", "jsonpath={.status.nodes}")
		return strings.Contains(out, "claim default/half"), out, err
	})
	actionsOf(t, options, `action "gpufabric_repartition" "sevenths" {
  config {
    mig_layout = "inference"
  }
}
`)
	if out, err := invoke(t, options, "gpufabric_repartition.sevenths"); err != nil ||
		!has(out, "the layout stands on "+node, "1 pods were evicted") {
		t.Errorf("the repartitioning says %s (error: %v)", out, err)
	}
	e.kubectl(t, "wait", "pod/holds-half", "--for=delete", inTime)
	e.kubectl(t, "delete", "resourceclaim/half", inTime)
}

// testSlices requests a slice by one line of limits, as the example's output says.
func testSlices(t *testing.T, e *environment, options *terraform.Options) {
	resource := terraform.OutputMap(t, options, "resources")["small"]
	e.apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: slice}, spec: {terminationGracePeriodSeconds: 1,
		containers: [{name: c, image: "ubuntu:22.04", command: [sleep, "9999"], resources: {limits: {%q: 1}}}]}}`, resource))
	e.kubectl(t, "wait", "pod/slice", "--for=condition=Ready", inTime)
	e.kubectl(t, "delete", "pod/slice", inTime)
}

// kubectlLines returns kubectl's output, by lines.
func (e *environment) kubectlLines(t *testing.T, args ...string) []string {
	t.Helper()
	return strings.Fields(e.kubectl(t, args...))
}
