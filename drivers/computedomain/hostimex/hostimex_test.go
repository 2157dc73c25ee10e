package hostimex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/port"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/imex"
	fakeimex "gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/program"
)

const version = "580.95.05"

// node is a node of files, whose driver is loaded and has nvidia-imex.
type node struct {
	*Service
	root string
}

func newNode(t *testing.T, execute imex.Execute) node {
	t.Helper()
	root, err := os.MkdirTemp("", "h") // sockets have short paths only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n := node{root: root, Service: &Service{
		Driver:    driver.Search{Roots: []driver.Place{{Path: filepath.Join(root, "driver"), Host: "/"}}, ProcRoot: filepath.Join(root, "proc")},
		SysfsRoot: filepath.Join(root, "sys"), Socket: filepath.Join(root, "ctrl.sock"), Directory: filepath.Join(root, "links"),
		Execute: execute,
	}}
	n.write(t, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  "+version+"  Release Build\n")
	for _, name := range []string{"bin/nvidia-imex", "bin/nvidia-imex-ctl", "lib64/libnvidia-ml.so.1"} {
		n.write(t, "driver/usr/"+name, "")
	}
	return n
}

func (n node) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(n.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (n node) runs(t *testing.T) {
	t.Helper()
	n.write(t, "sys/fs/cgroup/system.slice/nvidia-imex.service/cgroup.procs", "4711\n")
}

// answers are the outputs of the programs, by their last argument.
func answers(byWord map[string]string) imex.Execute {
	return func(_ context.Context, words []string) ([]byte, error) {
		for _, word := range words {
			if answer, ok := byWord[word]; ok {
				return []byte(answer), nil
			}
		}
		return nil, errors.New("exit status 1: connection refused")
	}
}

func TestServiceStateHasItsReason(t *testing.T) {
	listen := func(t *testing.T, n node) {
		t.Helper()
		listener, err := net.Listen("unix", n.Socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
	}
	nothing := func(*testing.T, node) {}
	running := func(t *testing.T, n node) { n.runs(t) }
	open := func(t *testing.T, n node) { n.runs(t); listen(t, n) }
	absent := func(t *testing.T, n node) {
		if err := os.Remove(filepath.Join(n.root, "driver/usr/bin/nvidia-imex-ctl")); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		option, answer string
		ground         func(t *testing.T, n node)
		reason, words  string
	}{
		"ready":                      {"-q", "READY\n", nothing, "", ""},
		"not ready":                  {"-q", "WAITING_FOR_RECOVERY\n", nothing, NotReady, "WAITING_FOR_RECOVERY"},
		"unavailable":                {"-q", "UNAVAILABLE\n", open, NotReady, "UNAVAILABLE"},
		"an answer that is no state": {"-q", "FINE\n", open, NotAnswering, `"FINE\n"`},
		"no answer":                  {"", "", open, NotAnswering, "does not answer by"},
		"no socket":                  {"", "", running, NoSocket, "IMEX_CMD_UNIX_DOMAIN_PATH="},
		"stopped":                    {"--version", "IMEX version is: " + version, nothing, NotRunning, "systemctl enable"},
		"stopped, of some version":   {"", "", nothing, NotRunning, "systemctl enable"},
		"refused by the driver":      {"--version", "IMEX version is: 570.1.2\n", nothing, VersionMismatch, "570.1.2"},
		"not installed":              {"", "", absent, NotInstalled, "install the package nvidia-imex"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, answers(map[string]string{c.option: c.answer}))
			c.ground(t, n)
			got := n.Look(t.Context())
			if got.Reason != c.reason || (got.Message == "") != (c.reason == "") {
				t.Errorf("%+v, want reason %q", got, c.reason)
			}
			if !strings.Contains(got.Message, c.words) {
				t.Errorf("%q does not say %q", got.Message, c.words)
			}
		})
	}
}

// listed is the answer of a service whose node is the first line of its list.
func listed(t *testing.T, hosts []string, connections ...fakeimex.Connection) map[string]string {
	t.Helper()
	status := fakeimex.Status{Nodes: map[string]fakeimex.NodeStatus{}}
	own := map[string]fakeimex.ConnectionStatus{}
	for i, host := range hosts {
		status.Nodes[fmt.Sprint(i)] = fakeimex.NodeStatus{Host: host, Version: version}
		if i > 0 && i <= len(connections) {
			own[fmt.Sprint(i)] = fakeimex.ConnectionStatus{Host: host, Status: connections[i-1]}
		}
	}
	first := status.Nodes["0"]
	first.Connections = own
	status.Nodes["0"] = first
	var text bytes.Buffer
	if err := status.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"-N": text.String()}
}

func TestServiceNamesAnUnreachableNode(t *testing.T) {
	own := Peer{Name: "a", Addresses: []string{"10.0.0.1", "a"}}
	others := []Peer{{Name: "b", Addresses: []string{"10.0.0.2"}}, {Name: "c", Addresses: []string{"10.0.0.3"}}}
	all := []string{"10.0.0.1", "10.0.0.2", "c"}
	for name, c := range map[string]struct {
		answers map[string]string
		reason  string
		words   string
	}{
		"all connected":       {listed(t, all, fakeimex.Connected, fakeimex.Connected), "", ""},
		"one not yet":         {listed(t, all, fakeimex.NeverConnected, fakeimex.Connected), "", ""},
		"one not listed":      {listed(t, all[:2], fakeimex.Connected), NodesMissing, "not these of the domain: c:"},
		"another list there":  {listed(t, all, fakeimex.Connected, fakeimex.NodeMapMismatch), NodesMissing, "different lists of nodes"},
		"another version":     {listed(t, all, fakeimex.VersionMismatch, fakeimex.Connected), VersionMismatch, "b (" + version + ")"},
		"a list without self": {listed(t, []string{"192.168.0.1", "192.168.0.2"}), "error", "10.0.0"},
		"no list":             {nil, "error", ""},
		"no JSON":             {map[string]string{"-N": "Nodes:\n"}, "error", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, answers(c.answers))
			got, err := n.Peers(t.Context(), own, others)
			if c.reason == "error" {
				if err == nil || got.Reason != "" {
					t.Errorf("%+v, %v: a list that is not known must keep nobody waiting", got, err)
				}
				return
			}
			if err != nil || got.Reason != c.reason || !strings.Contains(got.Message, c.words) {
				t.Errorf("%+v, %v, want %s with %q", got, err, c.reason, c.words)
			}
		})
	}
}

func TestServiceCountsManyMissingNodes(t *testing.T) {
	var others []Peer
	for i := range 9 {
		others = append(others, Peer{Name: fmt.Sprintf("n%d", i)})
	}
	got := judge([]imex.Node{{Host: "a"}}, imex.Node{Host: "a"}, others)
	if got.Reason != NodesMissing || !strings.Contains(got.Message, "n0, n1, n2, n3, n4 and 4 more") {
		t.Errorf("%+v", got)
	}
}

// The programs may be anywhere in the driver's root, and are started from links that keep them together.
func TestProgramsAreStartedFromTheDriversLinks(t *testing.T) {
	var started []string
	n := newNode(t, func(_ context.Context, words []string) ([]byte, error) {
		target, err := os.Readlink(words[0])
		if err != nil {
			return nil, err
		}
		started = append(started, target)
		return []byte("READY\n"), nil
	})
	first := filepath.Join(n.root, "driver")
	for range 2 {
		if got := n.Look(t.Context()); got.Reason != "" {
			t.Fatal(got)
		}
	}
	n.write(t, "other/usr/bin/nvidia-imex", "")
	n.write(t, "other/usr/bin/nvidia-imex-ctl", "")
	n.write(t, "other/usr/lib64/libnvidia-ml.so.1", "")
	n.Driver.Roots[0].Path = filepath.Join(n.root, "other")
	if got := n.Look(t.Context()); got.Reason != "" {
		t.Fatal(got)
	}
	want := []string{first + "/usr/bin/nvidia-imex-ctl", first + "/usr/bin/nvidia-imex-ctl", n.root + "/other/usr/bin/nvidia-imex-ctl"}
	if !slices.Equal(started, want) {
		t.Errorf("started %v, want %v", started, want)
	}
}

// The fake daemon and the fake nvidia-imex-ctl behave as NVIDIA's documentation describes the real ones.
func TestServiceIsQueriedOnlyByItsSocket(t *testing.T) {
	n := newNode(t, func(ctx context.Context, words []string) ([]byte, error) {
		var stdout, stderr bytes.Buffer
		if program.Run(ctx, filepath.Base(words[0]), words[1:], &stdout, &stderr) != 0 {
			return nil, errors.New(stderr.String())
		}
		return stdout.Bytes(), nil
	})
	ports, err := port.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	n.write(t, "nodes.cfg", "127.0.0.1\n")
	n.runs(t)
	if got := n.Look(t.Context()); got.Reason != NoSocket {
		t.Errorf("before it has a socket: %+v", got)
	}
	daemon, err := fakeimex.New(fakeimex.Config{
		BindAddress: netip.MustParseAddr("127.0.0.1"), ServerPort: uint16(ports[0]), //nolint:gosec // a port
		NodesFile: filepath.Join(n.root, "nodes.cfg"), Quorum: fakeimex.QuorumNone, CommandEnabled: true, CommandSocket: n.Socket,
	}, fakeimex.Options{Version: version})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	for n.Look(t.Context()).Reason != "" {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond): // there is no event for READY
		}
	}
	// A busy machine may take longer than a query is given.
	own, others := Peer{Name: "a", Addresses: []string{"127.0.0.1"}}, []Peer{{Name: "b"}}
	got, err := n.Peers(t.Context(), own, others)
	for err != nil && t.Context().Err() == nil {
		t.Log(err)
		got, err = n.Peers(t.Context(), own, others)
	}
	if got.Reason != NodesMissing {
		t.Errorf("%+v, %v", got, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := n.Look(t.Context()); got.Reason == "" {
		t.Error("it is READY after its end")
	}
}

// Both versions of cgroups are read as in a container with its own PID namespace.
func TestServiceIsDetectedInBothCgroupVersions(t *testing.T) {
	for name, c := range map[string]struct {
		file, content string
		want          bool
	}{
		"version 2":              {"system.slice/nvidia-imex.service/cgroup.procs", "0\n", true},
		"version 2, and none":    {"system.slice/nvidia-imex.service/cgroup.procs", "", false},
		"version 1":              {"systemd/system.slice/nvidia-imex.service/cgroup.procs", "", true},
		"version 1, and another": {"systemd/system.slice/nvidia-imex-old.service/cgroup.procs", "", false},
	} {
		sysfs := t.TempDir()
		node{root: sysfs}.write(t, "fs/cgroup/"+c.file, c.content)
		if got := Running(sysfs); got != c.want {
			t.Errorf("%s: running is %t", name, got)
		}
	}
}
