package exclusive

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

const (
	podA = "/var/run/netns/cni-a"
	podB = "/var/run/netns/cni-b"
	home = "the node"
)

// machine plays the kernel's links: it records in which namespace each is. As in the kernel, a move removes an interface's
// settings. An interface made by IPoIB (ib0) disappears with each move of its device, and another is made on the node.
type machine struct {
	at     map[string]string
	broken map[string]bool // links whose moves fail
	setUp  map[string]bool // interfaces that have their settings

	missing  map[string][]string // the settings of interfaces that cannot be restored
	ended    map[string]bool     // namespaces whose interfaces never come back
	awaiting chan string         // receives interfaces that are waited for
	mu       sync.Mutex
}

func newMachine(names ...string) *machine {
	m := &machine{at: map[string]string{}, broken: map[string]bool{}, setUp: map[string]bool{}, awaiting: make(chan string)}
	for _, name := range names {
		m.at[name], m.setUp[name] = home, true
	}
	return m
}

func (m *machine) Exclusive() (bool, error) { return true, nil }

func (m *machine) Look(name string) (Interface, error) {
	if m.at[name] != home {
		return Interface{}, errors.New(name + " is not there")
	}
	return Interface{Name: name, Up: m.setUp[name]}, nil
}

func (m *machine) move(name, from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.broken[name]:
		return errors.New(name + " is busy")
	case m.at[name] == from:
		m.at[name], m.setUp[name] = to, false
		if _, ipoib := m.at["ib0"]; ipoib && strings.HasPrefix(name, "mlx5") {
			m.at["ib0"], m.setUp["ib0"] = home, false
		}
		return nil
	case m.at[name] == to || to == home:
		return nil
	}
	return errors.New(name + " is not there")
}

func (m *machine) GiveRDMA(device, namespace string) error { return m.move(device, home, namespace) }
func (m *machine) TakeRDMA(device, namespace string) error { return m.move(device, namespace, home) }

func (m *machine) GiveInterface(i Interface, namespace string) ([]string, error) {
	err := m.move(i.Name, home, namespace)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setUp[i.Name] = i.Up
	return m.missing[i.Name], err
}

func (m *machine) TakeInterface(i Interface, namespace string) ([]string, error) {
	err := m.move(i.Name, namespace, home)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at[i.Name] == home {
		m.setUp[i.Name] = i.Up
	}
	return m.missing[i.Name], err
}

func (m *machine) Await(ctx context.Context, namespace string, _ []Interface) {
	if m.ended[namespace] {
		m.awaiting <- namespace
		<-ctx.Done()
	}
}

// away lists the links that are in pods, with their namespaces.
func (m *machine) away() map[string]string {
	away := maps.Clone(m.at)
	maps.DeleteFunc(away, func(_, place string) bool { return place == home })
	return away
}

func newMover(t *testing.T, dir string, links Links) *Mover {
	t.Helper()
	m, _, err := NewMover(dir, links, atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *Mover) recorded() []string {
	var sandboxes []string
	for _, e := range m.book.All() {
		sandboxes = append(sandboxes, e.Sandbox)
	}
	return sandboxes
}

func first(pod string) []Grant {
	return []Grant{{Claim: "default/nic-" + pod, PodUID: pod, Devices: []Device{{RDMA: "mlx5_0", Nets: []string{"ens1"}}}}}
}

func TestMoverGivesAPodItsDevicesUntilItStops(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1", "mlx5_1", "ens2")
	m := newMover(t, t.TempDir(), kernel)
	if _, err := m.Give(t.Context(), "a", "default/a", podA, first("uid-a")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"mlx5_0": podA, "ens1": podA}, kernel.away()); diff != "" {
		t.Error(diff)
	}
	if _, err := m.Give(t.Context(), "a", "default/a", podA, first("uid-a")); err != nil {
		t.Errorf("giving again: %v", err)
	}
	_, err := m.Give(t.Context(), "b", "default/b", podB, first("uid-b"))
	if err == nil || !strings.Contains(err.Error(), "mlx5_0 is in the network of another pod") ||
		strings.Contains(err.Error(), "default/a") {
		t.Errorf("another pod was given the same device: %v", err)
	}
	for range 2 { // Taking back twice is the same as once.
		if err := m.Take(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if away := kernel.away(); len(away) > 0 || len(m.recorded()) > 0 {
		t.Errorf("away %v, recorded %v", away, m.recorded())
	}
	if _, err := m.Give(t.Context(), "b", "default/b", podB, first("uid-b")); err != nil {
		t.Errorf("the device is free again: %v", err)
	}
}

func TestInterfacesAreSetUpAfterEachMove(t *testing.T) {
	for _, net := range []string{"ens1", "ib0"} {
		t.Run(net, func(t *testing.T) {
			kernel := newMachine("mlx5_0", net)
			dir := t.TempDir()
			grants := []Grant{{Claim: "default/nic", PodUID: "uid-a", Devices: []Device{{RDMA: "mlx5_0", Nets: []string{net}}}}}
			if _, err := newMover(t, dir, kernel).Give(t.Context(), "a", "default/a", podA, grants); err != nil {
				t.Fatal(err)
			}
			if kernel.at[net] != podA || !kernel.setUp[net] {
				t.Errorf("in the pod: %s is at %s, set up: %v", net, kernel.at[net], kernel.setUp[net])
			}
			// Another process takes it back: the settings are on disk.
			if err := newMover(t, dir, kernel).Take(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if kernel.at[net] != home || !kernel.setUp[net] {
				t.Errorf("afterwards: %s is at %s, set up: %v", net, kernel.at[net], kernel.setUp[net])
			}
		})
	}
}

func TestMoverUndoesAMoveThatFails(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1", "ens2")
	kernel.broken["ens2"] = true
	m := newMover(t, t.TempDir(), kernel)
	grants := []Grant{{Claim: "default/nic", PodUID: "uid-a", Devices: []Device{{RDMA: "mlx5_0", Nets: []string{"ens1"}},
		{RDMA: "mlx5_1", Nets: []string{"ens2"}}}}}
	kernel.at["mlx5_1"] = home
	if _, err := m.Give(t.Context(), "a", "default/a", podA, grants); err == nil || !strings.Contains(err.Error(), "ens2 is busy") {
		t.Errorf("got %v", err)
	}
	delete(kernel.broken, "ens2") // Until then it may not be back, and the record stays.
	if err := m.Take(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if away := kernel.away(); len(away) > 0 || len(m.recorded()) > 0 {
		t.Errorf("away %v, recorded %v", away, m.recorded())
	}
}

func TestMoverKeepsARenamedInterfaceOverARestart(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1", "mlx5_1", "ens2")
	dir := t.TempDir()
	grants := []Grant{{Claim: "default/nics", PodUID: "uid-a", Devices: []Device{{RDMA: "mlx5_0", Nets: []string{"ens1"}},
		{RDMA: "mlx5_1", Nets: []string{"ens2"}}}}}
	if _, err := newMover(t, dir, kernel).Give(t.Context(), "a", "default/a", podA, grants); err != nil {
		t.Fatal(err)
	}
	delete(kernel.at, "ens1")
	kernel.at["net1"] = podA
	hook := &Hook{Events: record.NewFakeRecorder(10), Mover: newMover(t, dir, kernel), Grants: func(string) []Grant { return grants }}
	if _, err := hook.Synchronize(t.Context(), []*api.PodSandbox{sandbox("a", "uid-a", podA)}, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"mlx5_0": podA, "net1": podA, "mlx5_1": podA, "ens2": podA}, kernel.away()); diff != "" {
		t.Error(diff)
	}
	if err := hook.StopPodSandbox(t.Context(), sandbox("a", "uid-a", podA)); err != nil {
		t.Fatal(err)
	}
	// The kernel returns a renamed interface when the namespace ends.
	if diff := cmp.Diff(map[string]string{"net1": podA}, kernel.away()); diff != "" || len(hook.Mover.recorded()) > 0 {
		t.Errorf("%s, recorded %v", diff, hook.Mover.recorded())
	}
}

func TestMoverRemembersDevicesThatItCannotTakeBack(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1")
	dir := t.TempDir()
	m := newMover(t, dir, kernel)
	if _, err := m.Give(t.Context(), "a", "default/a", podA, first("uid-a")); err != nil {
		t.Fatal(err)
	}
	kernel.broken["mlx5_0"] = true
	if err := m.Take(t.Context(), "a"); err == nil {
		t.Error("a device that is busy was taken back")
	}
	if diff := cmp.Diff(map[string]string{"mlx5_0": podA}, kernel.away()); diff != "" {
		t.Error(diff)
	}
	delete(kernel.broken, "mlx5_0")
	// The process dies here; the next one finds the sandbox gone.
	next := newMover(t, dir, kernel)
	if err := next.Keep(t.Context(), map[string]bool{"another": true}); err != nil {
		t.Fatal(err)
	}
	if away := kernel.away(); len(away) > 0 || len(next.recorded()) > 0 {
		t.Errorf("away %v, recorded %v", away, next.recorded())
	}
}

func TestMoverKeepsDevicesInACrash(t *testing.T) {
	for _, step := range atomicfile.Steps() {
		t.Run(string(step), func(t *testing.T) {
			kernel := newMachine("mlx5_0", "ens1")
			dir := t.TempDir()
			m, _, err := NewMover(dir, kernel, atomicfile.Writer{Before: func(s atomicfile.Step, _ string) error {
				if s == step {
					return atomicfile.Crash()
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.Give(t.Context(), "a", "default/a", podA, first("uid-a")); err == nil {
				t.Fatal("the crash was not noticed")
			}
			if err := newMover(t, dir, kernel).Keep(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if away := kernel.away(); len(away) > 0 {
				t.Errorf("away %v", away)
			}
		})
	}
}

// stored is a record's file of a version.
func stored(t *testing.T, version int, body string) string {
	t.Helper()
	data, err := store.Format[json.RawMessage]{Name: bookFormat().Name, Version: version}.Encode(json.RawMessage(body))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestMoverReportsADamagedRecord(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON":            "{",
		"another version":    stored(t, 9, `{"sandbox": "bad", "grants": [{}]}`),
		"no grants":          stored(t, 1, `{"sandbox": "bad"}`),
		"another's sandbox":  stored(t, 1, `{"sandbox": "../../etc/passwd", "grants": [{}]}`),
		"an empty file":      "",
		"a list of nonsense": `[1, 2]`,
	} {
		t.Run(name, func(t *testing.T) {
			kernel := newMachine("mlx5_0", "ens1")
			dir := t.TempDir()
			m := newMover(t, dir, kernel)
			if _, err := m.Give(t.Context(), "a", "default/a", podA, first("uid-a")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "bad.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			m, unreadable, err := NewMover(dir, kernel, atomicfile.Writer{}) // files are read at the start
			if err != nil || len(unreadable) != 1 || !strings.Contains(unreadable[0].String(), "bad.json") {
				t.Fatalf("got %v, %v", unreadable, err)
			}
			if want := name == "another version"; strings.Contains(unreadable[0].String(), "run the newer version again") != want {
				t.Errorf("told %s", unreadable[0])
			}
			if n := testutil.ToFloat64(m.Collector()); n != 1 {
				t.Errorf("the metric says %g", n)
			}
			if err := m.Keep(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if away := kernel.away(); len(away) > 0 {
				t.Errorf("away %v", away)
			}
			if _, err := m.Give(t.Context(), "b", "default/b", podB, first("uid-b")); err != nil {
				t.Errorf("the next pod: %v", err)
			}
			if err := m.TakeFrom(t.Context(), "default/nic-uid-b", "uid-b"); err != nil || len(kernel.away()) > 0 {
				t.Errorf("the next pod's end: %v, away %v", err, kernel.away())
			}
			if kept, err := os.ReadFile(filepath.Join(dir, "unreadable/bad.json")); err != nil || string(kept) != content {
				t.Errorf("the damaged record is now %q, %v", kept, err)
			}
		})
	}
}

// The pod runs, and its devices are in its namespace: the record is made again from the claim.
func TestMoverTakesDevicesBackDespiteADamagedRecord(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1")
	dir := t.TempDir()
	if _, err := newMover(t, dir, kernel).Give(t.Context(), "a", "default/a", podA, first("uid-a")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMover(t, dir, kernel)
	if _, err := m.Give(t.Context(), "a", "default/a", podA, first("uid-a")); err != nil {
		t.Error(err)
	}
	if err := m.Take(t.Context(), "a"); err != nil || len(kernel.away()) > 0 || len(m.recorded()) > 0 {
		t.Errorf("%v, away %v, recorded %v", err, kernel.away(), m.recorded())
	}
}

func TestMoverRejectsASandboxIDWithAPath(t *testing.T) {
	m := newMover(t, t.TempDir(), newMachine("mlx5_0", "ens1"))
	for _, id := range []string{"", "../a", "a/b", ".a", strings.Repeat("a", 200)} {
		if _, err := m.Give(t.Context(), id, "default/a", podA, first("uid-a")); err == nil {
			t.Errorf("%q was taken", id)
		}
	}
}
