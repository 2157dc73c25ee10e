package program_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/cli"

	"gpufabric.io/drivers/scheduler/program"
)

// asScheduler makes the test's own program be gpufabric-scheduler.
const asScheduler = "GPUFABRIC_TEST_AS_SCHEDULER"

func TestMain(m *testing.M) {
	if os.Getenv(asScheduler) != "" {
		os.Exit(cli.Run(program.Command()))
	}
	os.Exit(m.Run())
}

// launch starts the scheduler as a process of its own, which ends with the test or with ctx.
func (c *cluster) launch(ctx context.Context, t *testing.T, arguments ...string) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	process := exec.CommandContext(ctx, self, append([]string{"--config=" + filepath.Join(c.dir, "our-scheduler.yaml"), "--secure-port=0"},
		arguments...)...)
	process.Env = append(os.Environ(), asScheduler+"=1")
	var said strings.Builder
	process.Stdout, process.Stderr = &said, &said
	must(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if t.Failed() {
			t.Logf("it said:\n%s", said.String())
		}
	})
}

// testElection runs the scheduler as the chart's pod does, as a process that elects itself, with the chart's rights to its lease.
func testElection(t *testing.T, c *cluster) {
	c.stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	file := filepath.Join(c.dir, "our-scheduler.yaml")
	content, err := os.ReadFile(file)
	must(t, err)
	elected := strings.Replace(string(content), "leaderElect: false", "leaderElect: true", 1)
	must(t, os.WriteFile(file, []byte(elected), 0o600))

	c.launch(ctx, t)
	watch, err := c.admin.CoordinationV1().Leases("gpufabric-system").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	must(t, err)
	defer watch.Stop()
	held := false
	for event := range watch.ResultChan() {
		if lease, ok := event.Object.(*coordinationv1.Lease); ok && lease.Name == "gpufabric-scheduler" && lease.Spec.HolderIdentity != nil {
			held = true
			break
		}
	}
	if !held {
		t.Fatal("nobody holds the lease gpufabric-scheduler")
	}
	c.create(t, pod("elected", "low", "a"))
	c.bound(t, "elected")
}
