// Package nvfm gives tests a fabric manager without NVSwitches: a libnvfm.so.1 in C, and the state that it reads.
package nvfm

import (
	"embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

//go:embed library
var source embed.FS

// Library builds the library and returns its path. The test is skipped, with the reason, where there is no C compiler.
func Library(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("skipped: the fake libnvfm.so.1 cannot be built without gcc")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, source); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "libnvfm.so.1")
	build := exec.CommandContext(t.Context(), "gcc", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
		"-shared", "-o", path, filepath.Join(dir, "library/nvfm.c"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build libnvfm.so.1: %v\n%s", err, out)
	}
	return path
}

// Partition is a set of GPUs that the fabric manager can connect.
type Partition struct {
	ID     int
	Active bool
	// GPUs are the module IDs of its GPUs, with their PCI addresses; empty: it does not report them (from H100 on).
	GPUs map[int]string
}

// Manager is a fabric manager. Its address is a file, which stands for its socket.
type Manager struct {
	t       testing.TB
	Address string
}

// New starts a fabric manager in shared NVSwitch mode, in the mode that survives restarts.
func New(t testing.TB, partitions []Partition) *Manager {
	m := &Manager{t: t, Address: filepath.Join(t.TempDir(), "fabricmanager")}
	var b strings.Builder
	b.WriteString("mode shared\nrestart 1\nconfigured 1\n")
	for _, p := range partitions {
		active := 0
		if p.Active {
			active = 1
		}
		fmt.Fprintf(&b, "partition %d %d", p.ID, active)
		for _, module := range slices.Sorted(maps.Keys(p.GPUs)) {
			bus := p.GPUs[module]
			if bus == "" {
				bus = "-"
			}
			fmt.Fprintf(&b, " %d:%s", module, bus)
		}
		b.WriteString("\n")
	}
	m.write(b.String())
	return m
}

// HGX are the partitions of a board with eight GPUs: one of eight, two of four, four of two, and each GPU alone, as the user guide
// lists them. GPUs are found by their module IDs alone.
func HGX() []Partition {
	var all []Partition
	for size := 8; size > 0; size /= 2 {
		for first := 1; first <= 8; first += size {
			p := Partition{ID: len(all) + 1, GPUs: map[int]string{}}
			for module := first; module < first+size; module++ {
				p.GPUs[module] = ""
			}
			all = append(all, p)
		}
	}
	return all
}

// Active are the IDs of the active partitions.
func (m *Manager) Active() []int {
	m.t.Helper()
	var out []int
	for line := range strings.Lines(m.read()) {
		var id, active int
		if _, err := fmt.Sscanf(line, "partition %d %d", &id, &active); err == nil && active == 1 {
			out = append(out, id)
		}
	}
	return out
}

// Restart restarts it: in the mode that survives restarts it waits for its active partitions; else it has none.
func (m *Manager) Restart(survives bool) {
	m.t.Helper()
	var b strings.Builder
	b.WriteString("mode shared\n")
	if survives {
		b.WriteString("restart 1\nconfigured 0\n")
	} else {
		b.WriteString("restart 0\nconfigured 1\n")
	}
	for line := range strings.Lines(m.read()) {
		var id, active int
		if n, _ := fmt.Sscanf(line, "partition %d %d", &id, &active); n == 2 {
			rest := strings.SplitN(line, " ", 4)
			fmt.Fprintf(&b, "partition %d 0 %s", id, rest[3])
		}
	}
	m.write(b.String())
}

// Replace replaces text of the state: "mode shared", "unbound 3", ...
func (m *Manager) Replace(old, text string) {
	m.t.Helper()
	m.write(strings.Replace(m.read(), old, text, 1))
}

// Stop ends it; its address is gone.
func (m *Manager) Stop() {
	m.t.Helper()
	if err := os.Rename(m.Address, m.Address+".stopped"); err != nil {
		m.t.Fatal(err)
	}
}

// Start makes one that was stopped answer again, with the partitions that it had.
func (m *Manager) Start() {
	m.t.Helper()
	if err := os.Rename(m.Address+".stopped", m.Address); err != nil {
		m.t.Fatal(err)
	}
}

func (m *Manager) read() string {
	m.t.Helper()
	text, err := os.ReadFile(m.Address)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func (m *Manager) write(text string) {
	m.t.Helper()
	if err := os.WriteFile(m.Address, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}
