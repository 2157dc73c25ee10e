package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/process"
	"gpufabric.io/tests/simcluster/simnode"
)

// noPrograms is a runtime that runs nothing: every container is of another image.
type noPrograms struct{}

func (noPrograms) Owns(string) bool { return false }

func (noPrograms) Run(context.Context, simnode.Container) error { panic("nothing runs here") }

func (noPrograms) Exec(context.Context, simnode.Container, []string) error {
	panic("nothing runs here")
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestClusterBecomesReadyAndDownRemovesIt(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	binaries, err := controlplane.Binaries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	nodes := 18
	if n := os.Getenv("SIMCLUSTER_TEST_NODES"); n != "" {
		if nodes, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	c, err := cluster.Up(ctx, cluster.Options{Dir: dir, Nodes: nodes, Binaries: binaries, Runtime: noPrograms{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes Ready after %s", nodes, time.Since(start).Round(time.Millisecond))
	if _, err := cluster.Up(ctx, cluster.Options{Dir: dir, Nodes: 1, Binaries: binaries, Runtime: noPrograms{}}); err == nil ||
		!strings.Contains(err.Error(), "simcluster down") {
		t.Errorf("a second cluster in the same directory: %v; want what is there and how to go on", err)
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
	c.Down()
	if found, err := process.Find(dir); err != nil || len(found) > 0 {
		t.Errorf("after Down these run: %v, %v", found, err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after Down the directory is there: %v", err)
	}
}

func TestDownRemovesRemainsOfCrash(t *testing.T) {
	dir := shortDir(t)
	if err := os.WriteFile(filepath.Join(dir, "simcluster.json"), []byte(`{"nodes":3}`), 0o644); err != nil {
		t.Fatal(err)
	}
	// A process of the cluster whose parent has ended.
	left, err := process.Start(process.Spec{Name: "left", ClusterDir: dir, LogDir: filepath.Join(dir, "logs"), Path: "/bin/sleep",
		Args: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cluster.Up(context.Background(), cluster.Options{Dir: dir, Nodes: 1})
	if err == nil || !strings.Contains(err.Error(), "sleep (pid") || !strings.Contains(err.Error(), "simcluster down --dir "+dir) {
		t.Errorf("with a process left: %v; want its name and the remedy", err)
	}
	left.Kill()
	if _, err := cluster.Up(context.Background(), cluster.Options{Dir: dir, Nodes: 1}); err == nil ||
		!strings.Contains(err.Error(), "simcluster down --dir "+dir) {
		t.Errorf("with files left: %v; want the remedy", err)
	}
	if _, err := cluster.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after Remove the directory is there: %v", err)
	}
}

func TestDownKeepsForeignDirectories(t *testing.T) {
	dir := shortDir(t)
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Up(context.Background(), cluster.Options{Dir: dir, Nodes: 1}); err == nil ||
		!strings.Contains(err.Error(), "choose another --dir") {
		t.Errorf("got %v; want a refusal", err)
	}
	if _, err := cluster.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("Remove took what is not a cluster's: %v", err)
	}
}
