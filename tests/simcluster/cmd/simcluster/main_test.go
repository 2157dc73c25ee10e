package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/process"
)

// programEnv makes the test program run as simcluster, so that tests can run, interrupt and kill it. The nodes that it starts
// are the test program too.
const programEnv = "SIMCLUSTER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// simcluster is the program with its arguments on a directory.
func simcluster(ctx context.Context, dir string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, os.Args[0], append(args, "--dir", dir)...)
	cmd.Env = append(os.Environ(), programEnv+"=1")
	said := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	return cmd, said
}

// newDir is a place for a cluster, with a path that is short enough.
func newDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "sc")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "c")
	t.Cleanup(func() {
		cmd, said := simcluster(context.WithoutCancel(t.Context()), dir, "down")
		if err := cmd.Run(); err != nil {
			t.Errorf("down: %v: %s", err, said)
		}
		_ = os.RemoveAll(parent) // in the temporary directory
	})
	return dir
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	if running, err := process.Find(dir); err != nil || len(running) > 0 {
		t.Errorf("these run: %v, %v; want nothing", running, err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is there (%v); want nothing", dir, err)
	}
}

func TestUpRefusesMistakesBeforeItStartsAnything(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // it only held the port
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no nodes":                    {[]string{"--nodes=0"}, []string{"--nodes 0", "1 to 2048"}},
		"fewer than no nodes":         {[]string{"--nodes=-3"}, []string{"--nodes -3", "1 to 2048"}},
		"more nodes than addresses":   {[]string{"--nodes=2049"}, []string{"--nodes 2049", "1 to 2048"}},
		"a number that is none":       {[]string{"--nodes=many"}, []string{"--nodes", "many"}},
		"a profile not known":         {[]string{"--profile=gb300"}, []string{`"gb300"`, "gb200-nvl72", ".yaml"}},
		"containers not known":        {[]string{"--containers=machines"}, []string{`"machines"`, "goroutines", "processes"}},
		"a port that is taken":        {[]string{"--port=" + port}, []string{port, "choose another", "0 for any"}},
		"a port that cannot be":       {[]string{"--port=99999"}, []string{"99999", "choose another"}},
		"an argument that is nothing": {[]string{"eighteen"}, []string{"eighteen"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			cmd, said := simcluster(t.Context(), dir, append([]string{"up"}, test.args...)...)
			if err := cmd.Run(); err == nil {
				t.Fatalf("it came up: %s", said)
			}
			for _, want := range test.want {
				if !strings.Contains(said.String(), want) {
					t.Errorf("it says %q; want %q in it", said, want)
				}
			}
			nothingLeft(t, dir)
		})
	}
	t.Run("a directory whose sockets' paths would be too long", func(t *testing.T) {
		dir := "/tmp/" + strings.Repeat("x", longestDir)
		cmd, said := simcluster(t.Context(), dir, "up")
		if err := cmd.Run(); err == nil || !strings.Contains(said.String(), strconv.Itoa(longestDir)) {
			t.Errorf("%v: %s; want the most bytes that it may have", err, said)
		}
		nothingLeft(t, dir)
	})
}

// serving waits until the cluster's control plane and nodes run.
func serving(t *testing.T, dir string) {
	t.Helper()
	const patience = 5 * time.Minute
	// processes of another parent have no event
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		running, err := process.Find(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(running) >= 5 { // etcd, API server, controller manager, scheduler, nodes
			return
		}
	}
	t.Fatal("the cluster did not start")
}

func TestDownRemovesRemainsOfKilledUp(t *testing.T) {
	dir := newDir(t)
	up, said := simcluster(t.Context(), dir, "up", "--nodes=2")
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	serving(t, dir)
	_ = up.Process.Kill() // it may have ended: then the cluster is up, which serves the test as well
	_ = up.Wait()

	again, saidAgain := simcluster(t.Context(), dir, "up", "--nodes=2")
	if err := again.Run(); err == nil {
		t.Fatalf("a second cluster came up over the first (%s): %s", said, saidAgain)
	}
	for _, want := range []string{"etcd (pid", "kube-apiserver (pid", "simcluster down --dir " + dir} {
		if !strings.Contains(saidAgain.String(), want) {
			t.Errorf("it says %q; want %q in it", saidAgain, want)
		}
	}
	bench, saidBench := simcluster(t.Context(), dir, "bench", "--nodes=18", "--out="+t.TempDir())
	if err := bench.Run(); err == nil {
		t.Fatalf("it measured in a directory that is taken: %s", saidBench)
	}
	running, err := process.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(running) < 4 { // etcd, API server, controller manager, scheduler
		t.Errorf("a benchmark that could not begin ended the cluster; these run: %v", running)
	}
	// A crash of the machine leaves files and no processes.
	for _, p := range running {
		_ = syscall.Kill(p.Pid, syscall.SIGKILL) // our own; it may have ended
	}
	for left := len(running); left > 0; time.Sleep(20 * time.Millisecond) {
		if running, err = process.Find(dir); err != nil {
			t.Fatal(err)
		}
		left = len(running)
	}
	third, saidThird := simcluster(t.Context(), dir, "up", "--nodes=2")
	if err := third.Run(); err == nil || !strings.Contains(saidThird.String(), "simcluster down --dir "+dir) {
		t.Errorf("over files that were left: %v, %s; want the remedy", err, saidThird)
	}
	down, saidDown := simcluster(t.Context(), dir, "down")
	if err := down.Run(); err != nil {
		t.Errorf("down: %v: %s", err, saidDown)
	}
	nothingLeft(t, dir)
}

func TestUpRemovesItsFilesWhenInterrupted(t *testing.T) {
	dir := newDir(t)
	up, said := simcluster(t.Context(), dir, "up", "--nodes=200")
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	serving(t, dir)
	if err := up.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := up.Wait(); err == nil {
		t.Skipf("200 nodes were up before it could be interrupted: %s", said)
	}
	if want := "whose rack has 18: it is repeated, 12 NVLink cliques in all, the last of 2 nodes"; !strings.Contains(said.String(), want) {
		t.Errorf("it says %q; want %q in it", said, want)
	}
	nothingLeft(t, dir)
}

func TestBenchRefusesMistakesBeforeItStartsAnything(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a part of a rack":          {[]string{"--nodes=18 20"}, `"20" is not a number of nodes in whole racks of 18`},
		"less than a rack":          {[]string{"--nodes=2"}, `"2" is not a number of nodes in whole racks of 18`},
		"nowhere to write its page": {[]string{"--nodes=18", "--out=/nowhere"}, `--out "/nowhere": no such directory`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			cmd, said := simcluster(t.Context(), dir, append([]string{"bench"}, test.args...)...)
			if err := cmd.Run(); err == nil || !strings.Contains(said.String(), test.want) {
				t.Errorf("%v: %s; want %q in it", err, said, test.want)
			}
			nothingLeft(t, dir)
		})
	}
}

func TestProcessesOfOneNameAreCounted(t *testing.T) {
	found := []process.Found{{Pid: 1, Name: "etcd"}, {Pid: 2, Name: "gpufabric"}, {Pid: 3, Name: "kube-apiserver"},
		{Pid: 4, Name: "gpufabric"}}
	if got, want := process.List(found), "etcd (pid 1), 2 gpufabric, kube-apiserver (pid 3)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDownReportsMissingCluster(t *testing.T) {
	dir := newDir(t)
	down, said := simcluster(t.Context(), dir, "down")
	if err := down.Run(); err != nil || !strings.Contains(said.String(), "no simulated cluster") {
		t.Errorf("%v: %s; want that there is none", err, said)
	}
}
