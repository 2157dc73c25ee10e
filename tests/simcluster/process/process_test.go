package process_test

import (
	"testing"

	"gpufabric.io/tests/simcluster/process"
)

// A process is found from the moment when Start returns, though its environment is laid out after the exec that Start waits for.
// Without the wait in Start, a few of these processes are missed on a busy machine.
func TestProcessIsFoundAtOnce(t *testing.T) {
	dir := t.TempDir()
	for range 200 {
		p, err := process.Start(process.Spec{Name: "left", ClusterDir: dir, LogDir: dir, Path: "/bin/sleep", Args: []string{"600"}})
		if err != nil {
			t.Fatal(err)
		}
		found, err := process.Find(dir)
		p.Kill()
		if err != nil || len(found) != 1 || found[0].Pid != p.Pid() {
			t.Fatalf("found %v, %v; want the process %d", found, err, p.Pid())
		}
	}
}

// A program that ends at once is no reason to wait.
func TestProcessThatEndsAtOnceCountsAsStarted(t *testing.T) {
	dir := t.TempDir()
	p, err := process.Start(process.Spec{Name: "brief", ClusterDir: dir, LogDir: dir, Path: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
}
