package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/kindcluster"
)

// rank is the output of a rank of the stand-in for nvbandwidth: where it runs, and which GPU and which IMEX channel it may
// open.
var rank = regexp.MustCompile(`(?m)^rank (\d+) of 8 on (nvbandwidth-test-worker-[01]): (/dev/nvidia\d), ` +
	`/dev/nvidia-caps-imex-channels/channel0;`)

// testMPIJob runs the seed's job over two nodes of a compute domain, without changing a byte, by the real MPI operator.
func testMPIJob(t *testing.T, e *environment) {
	e.operator(t)
	started := time.Now()
	e.apply(t, e.file(t, "examples/manifests/nvbandwidth-test-job.yaml"))
	e.kubectl(t, "wait", "pods", "--selector", "nvbandwidth-test-replica=mpi-worker", "--for=create", inTime)
	e.kubectl(t, "wait", "mpijob/nvbandwidth-test", "--for=condition=Succeeded", inTime)
	measured(t, "nvbandwidth's job applied to succeeded", time.Since(started))
	said := e.kubectl(t, "logs", "--selector", "nvbandwidth-test-replica=mpi-launcher", "--tail=-1")
	ranks, gpus := map[string]bool{}, map[string]bool{}
	for _, match := range rank.FindAllStringSubmatch(said, -1) {
		ranks[match[1]] = true
		gpus[match[2]+match[3]] = true
	}
	if len(ranks) != 8 || len(gpus) != 8 {
		t.Errorf("%d ranks spoke of %d GPUs, want 8 of 8:\n%s", len(ranks), len(gpus), said)
	}
	uid := e.domain(t, "nvbandwidth-test-compute-domain").Metadata.UID
	// With all its objects: the next job of this name would otherwise find the launcher, and be refused.
	e.kubectl(t, "delete", "mpijob/nvbandwidth-test", "--cascade=foreground", inTime)
	e.kubectl(t, "delete", "computedomain/nvbandwidth-test-compute-domain", inTime)
	e.nothingLeft(t, uid)
}

// operator installs the MPI operator with its own manifests, and removes it when the test ends.
func (e *environment) operator(t *testing.T) {
	t.Helper()
	chain, err := toolchain.New(e.printer)
	must(t, err)
	tools, err := chain.Ensure(t.Context(), "mpi-operator")
	must(t, err)
	must(t, e.ServeProgram(t.Context(), kindcluster.Program{
		Reference: "mpioperator/mpi-operator:" + strings.TrimPrefix(toolchain.MPIOperator, "v"),
		From:      tools["mpi-operator"], Path: "/mpi-operator",
	}))

	module := filepath.Join(e.root, "build/toolchain/modules/mpi-operator")
	inModule := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(fmt.Errorf("go %v in %s: %w", args, module, err))
		}
		return strings.TrimSpace(string(out))
	}
	inModule("mod", "download", "github.com/kubeflow/mpi-operator")
	manifests := filepath.Join(inModule("list", "-m", "-f", "{{.Dir}}", "github.com/kubeflow/mpi-operator"), "manifests/overlays/standalone")
	t.Cleanup(func() { e.kubectlCleanup(t, "delete", "--ignore-not-found", inTime, "--kustomize", manifests) })
	// The CRD is too long for the annotation of a client-side apply.
	e.kubectl(t, "apply", "--server-side", "--kustomize", manifests)
	e.kubectl(t, "--namespace", "mpi-operator", "wait", "deployment/mpi-operator", "--for=condition=Available", inTime)
}
