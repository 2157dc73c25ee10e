package e2e

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/kindcluster"
)

var kueue = flag.Bool("kueue", false, "run TestKueuePlacesGangsInKind, which builds Kueue the first time")

// gang is a Job with a domain of its own. Each pod requests over half of a node's cores, since Kueue counts devices of claims by quota
// alone.
const gang = `
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: %[1]s, annotations: {gpufabric.io/owner: Job/%[1]s}}
spec:
  numNodes: %[2]d
  channel: {resourceClaimTemplate: {name: %[1]s-channel}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s, labels: {kueue.x-k8s.io/queue-name: racks}}
spec:
  suspend: true
  completionMode: Indexed
  completions: %[2]d
  parallelism: %[2]d
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: nvidia.com/gpu.clique}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: ubuntu:22.04
        command: [sh, -c, "ls -la /dev/nvidia-caps-imex-channels; sleep infinity"]
        resources: {requests: {cpu: %[3]q}, claims: [{name: channel}]}
      resourceClaims: [{name: channel, resourceClaimTemplateName: %[1]s-channel}]
`

// TestKueuePlacesGangsInKind has the real Kueue, installed by its own chart with the values of examples/kueue, place gangs on four nodes
// in two cliques.
func TestKueuePlacesGangsInKind(t *testing.T) {
	if !*kueue {
		t.Skip("skipped: the first build of Kueue takes minutes, and it wants four workers in two cliques; `make kind-kueue` runs it")
	}
	e := newEnvironmentOf(t, "gpufabric-kueue", 4, profile)
	e.racks(t, 2)
	e.install(t, "--values", filepath.Join(e.root, "charts/fake-hardware/gpufabric-values.yaml"), "--set",
		"gpus.enabled=true,computeDomains.imex=clique,computeDomains.owners={Job}")
	cliques := e.cliques(t, 2)
	if t.Failed() {
		return
	}
	e.installKueue(t)
	// Half of a node's cores and a tenth: system pods have some of the rest.
	cores, err := strconv.Atoi(e.kubectl(t, "get", "node", e.Workers()[0], "--output", "jsonpath={.status.allocatable.cpu}"))
	must(t, err)
	request := fmt.Sprintf("%dm", cores*600)

	// Four nodes are free, two in each clique.
	e.apply(t, fmt.Sprintf(gang, "wide", 3, request))
	e.eventually(t, "Kueue to say why a gang of three waits", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "workloads.kueue.x-k8s.io", "--output", `jsonpath={.items[*].status.conditions}`)
		return has(out, `"QuotaReserved"`, "topology", "2 out of 3"), out, err
	})
	if pods := e.kubectl(t, "get", "pods", "--selector", "batch.kubernetes.io/job-name=wide", "--output", "name"); pods != "" {
		t.Errorf("a gang of three has pods, and no clique has three nodes: %s", pods)
	}
	e.kubectl(t, "delete", "job/wide", inTime)

	where := map[string]string{}
	for _, name := range []string{"first", "second"} {
		started := time.Now()
		e.apply(t, fmt.Sprintf(gang, name, 2, request))
		where[name] = e.together(t, name, 2, cliques)
		measured(t, "a gang of two applied to running, "+name, time.Since(started))
	}
	if where["first"] == where["second"] {
		t.Errorf("both gangs are in %s, which has two nodes for four pods", where["first"])
	}
	// The third is admitted when the first ends, into its clique.
	e.apply(t, fmt.Sprintf(gang, "third", 2, request))
	e.eventually(t, "Kueue to let the third gang wait", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "job", "third", "--output", "jsonpath={.spec.suspend}")
		return out == "true", out, err
	})
	uid := e.domain(t, "first").Metadata.UID
	e.kubectl(t, "delete", "job/first", "--cascade=foreground", inTime)
	if got := e.together(t, "third", 2, cliques); got != where["first"] {
		t.Errorf("the third gang runs in %q, want the clique that the first left, %q", got, where["first"])
	}
	e.vanish(t, "the first gang's domain", func(ctx context.Context) ([]string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "computedomain", "first", "--ignore-not-found", "--output", "name")
		return strings.Fields(out), err
	})
	e.nothingLeft(t, uid)
	for _, name := range []string{"second", "third"} {
		e.kubectl(t, "delete", "job/"+name, "--cascade=foreground", inTime)
	}
}

// racks distributes the workers over cliques of this size. The fake hardware's nodes are in a clique by their number, 18 in each.
func (e *environment) racks(t *testing.T, size int) {
	t.Helper()
	const nodesPerClique = 18
	workers := e.Workers()
	all := strconv.Itoa(len(workers) / size * nodesPerClique)
	for i, node := range workers {
		index := strconv.Itoa(i/size*nodesPerClique + i%size)
		e.kubectl(t, "label", "--overwrite", "node", node, "fakefabric.gpufabric.io/index="+index, "fakefabric.gpufabric.io/nodes="+all)
	}
}

// cliques waits until the drivers have labelled the workers with cliques of this size, and returns them by node.
func (e *environment) cliques(t *testing.T, size int) map[string]string {
	t.Helper()
	cliques := map[string]string{}
	e.eventually(t, fmt.Sprintf("the workers to be in cliques of %d", size), func(ctx context.Context) (bool, string, error) {
		sizes := map[string]int{}
		for _, node := range e.Workers() {
			clique, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.metadata.labels.nvidia\.com/gpu\.clique}`)
			if err != nil || clique == "" {
				return false, node + " has none", err
			}
			cliques[node] = clique
			sizes[clique]++
		}
		for _, nodes := range sizes {
			if nodes != size {
				return false, fmt.Sprint(cliques), nil
			}
		}
		return true, "", nil
	})
	return cliques
}

// installKueue installs Kueue by its chart, as in docs/workloads.md, and the example's queues, until the test ends.
func (e *environment) installKueue(t *testing.T) {
	t.Helper()
	chain, err := toolchain.New(e.printer)
	must(t, err)
	tools, err := chain.Ensure(t.Context(), "kueue")
	must(t, err)
	module, err := toolchain.ModuleDirectory(t.Context(), "kueue")
	must(t, err)
	// The number is that of the user nobody in images without a C library.
	must(t, e.ServeProgram(t.Context(), kindcluster.Program{
		Reference: "kueue/kueue:" + toolchain.Kueue, From: tools["kueue"], Path: "/manager", User: "65532",
	}))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := e.Helm(ctx, e.printer, "uninstall", "kueue", "--namespace", "kueue-system", "--wait"); err != nil {
			t.Errorf("remove Kueue: %v", err)
		}
	})
	_, err = e.Helm(t.Context(), e.printer, "install", "kueue", filepath.Join(module, "charts/kueue"), "--namespace", "kueue-system",
		"--create-namespace", "--wait", "--timeout", patience.String(), "--values", filepath.Join(e.root, "examples/kueue/values.yaml"),
		"--set", "controllerManager.manager.image.repository=kueue/kueue,controllerManager.manager.image.tag="+toolchain.Kueue)
	must(t, err)
	queues := e.file(t, "examples/kueue/queues.yaml")
	// Its webhook answers a moment after its pod is ready.
	e.eventually(t, "Kueue to take the queues", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, strings.NewReader(queues), "apply", "--filename", "-")
		return err == nil, out, err
	})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := e.Kubectl(ctx, strings.NewReader(queues), "delete", inTime, "--filename", "-"); err != nil {
			t.Errorf("remove Kueue's queues: %v", err)
		}
	})
}

// together waits until the gang's pods run with channels and its domain is Ready, and returns the one clique that they are in.
func (e *environment) together(t *testing.T, job string, count int, cliques map[string]string) string {
	t.Helper()
	var pods struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ NodeName string }
			Status   struct{ Phase string }
		}
	}
	e.eventually(t, fmt.Sprintf("%d pods of %s to run", count, job), func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pods", "--selector", "batch.kubernetes.io/job-name="+job,
			"--field-selector", "status.phase=Running", "--output", "name")
		return len(strings.Fields(out)) == count, out, err
	})
	e.get(t, &pods, "pods", "--selector", "batch.kubernetes.io/job-name="+job)
	found := map[string]int{}
	for _, pod := range pods.Items {
		found[cliques[pod.Spec.NodeName]]++
		e.says(t, pod.Metadata.Name, anyChannel)
	}
	if len(found) != 1 || len(pods.Items) != count {
		t.Errorf("%s has %d pods, in the cliques %v; want %d in one", job, len(pods.Items), found, count)
	}
	e.kubectl(t, "wait", "computedomain/"+job, "--for=jsonpath={.status.status}=Ready", inTime)
	for clique := range found {
		return clique
	}
	return ""
}
