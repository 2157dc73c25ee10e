package bench_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
)

const (
	served = "rdma/hca_shared_devices_a"
	units  = 1000
	// blind is how long the other plugin has to detect a port that went down: three times what ours may take.
	blind = 3 * time.Second
	// started is when a plugin has started: ours frees what only its start needed after 10 s.
	started = 15 * time.Second
	// calm is when memory for an event has been freed: ours checks every 30 s.
	calm = 35 * time.Second
)

// machine is a node of two HCAs with a kubelet, on which one plugin runs as a process.
type machine struct {
	tree    *sysfstest.Tree
	kubelet *kubelettest.Kubelet
	devices []string // paths of the HCAs
	config  string
}

func newMachine(t *testing.T) *machine {
	m := &machine{tree: sysfstest.New(t), kubelet: kubelettest.New(t)}
	for bus := range 2 {
		m.devices = append(m.devices, m.tree.AddHCA(sysfstest.HCA{Ethernet: true, Function: sysfstest.Function{
			Parent: fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", 0x10+bus*0x10, 0x10+bus*0x10), Address: fmt.Sprintf("0000:%02x:00.0", 0x11+bus*0x10),
		}}))
	}
	m.config = write(t, "config.json", fmt.Sprintf(`{"periodicUpdateInterval": 60, "configList": [{"resourceName": "hca_shared_devices_a", `+
		`"rdmaHcaMax": %d, "selectors": {"vendors": ["15b3"]}}]}`, units))
	m.kubelet.Start()
	return m
}

// run starts the plugin and ends it with the test.
func (m *machine) run(t *testing.T, command *exec.Cmd) {
	t.Helper()
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
}

// restarts measures how long the kubelet has no devices to allocate after it came back.
func (m *machine) restarts() []time.Duration {
	var took []time.Duration
	for range rounds {
		m.kubelet.Stop()
		begin := time.Now()
		m.kubelet.Start()
		m.kubelet.AwaitAllocatable(served, units)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took
}

// rest waits before a measurement of an idle plugin. There is no event from outside that shows that a plugin is idle.
func rest(t *testing.T, d time.Duration) {
	t.Helper()
	t.Logf("the plugin rests for %v: nothing tells when it has nothing left to do", d)
	time.Sleep(d)
}

// memory is the resident memory of a process, and how much of it is not backed by a file.
func memory(t *testing.T, process *os.Process) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS:") || strings.HasPrefix(line, "RssAnon:") {
			parts = append(parts, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(parts, ", ")
}

// TestNodeBesideTheOtherPlugin reports what each plugin does on the same node. It needs both as programs, which compare.sh builds.
func TestNodeBesideTheOtherPlugin(t *testing.T) {
	peer, ours := os.Getenv("PEER"), os.Getenv("GPUFABRIC")
	if peer == "" || ours == "" {
		t.Skip("skipped: run drivers/rdma/bench/compare.sh, which builds the other plugin and this one")
	}
	t.Run("ours", func(t *testing.T) {
		m := newMachine(t)
		state := t.TempDir()
		command := exec.CommandContext(t.Context(), ours, "rdma-plugin", "--dra=false", "--rdma-pools=false", "--config", m.config, "--node-name",
			"node-a",
			"--sysfs-root", m.tree.Sys, "--dev-root", m.tree.Dev, "--proc-devices", filepath.Join(state, "devices"), "--cdi-root",
			filepath.Join(state, "cdi"),
			"--kubelet-root", m.kubelet.Root(), "--state-dir", state)
		m.run(t, command)
		m.kubelet.AwaitAllocatable(served, units)
		rest(t, started)
		t.Log("memory at rest: " + memory(t, command.Process))
		var down, up []time.Duration
		for i := range rounds {
			port := m.devices[i%2] + "/ports/1/state"
			begin := time.Now()
			m.tree.Write(port, "1: DOWN")
			m.kubelet.AwaitAllocatable(served, units/2)
			down = append(down, time.Since(begin))
			begin = time.Now()
			m.tree.Write(port, "4: ACTIVE")
			m.kubelet.AwaitAllocatable(served, units)
			up = append(up, time.Since(begin))
		}
		slices.Sort(down)
		slices.Sort(up)
		restarts := m.restarts()
		t.Logf("port down to unhealthy: median %v, slowest %v", down[rounds/2], down[rounds-1])
		t.Logf("port up to healthy, debounced: median %v, slowest %v", up[rounds/2], up[rounds-1])
		t.Logf("kubelet's restart to allocatable: median %v, slowest %v", restarts[rounds/2], restarts[rounds-1])
		t.Log("memory right after all this: " + memory(t, command.Process))
		rest(t, calm)
		t.Log("memory after a rest: " + memory(t, command.Process))
		if fastest := down[0]; fastest > time.Second {
			t.Errorf("the fastest of %d ports that went down took %v to be unhealthy; want under 1 s", rounds, fastest)
		}
		if fastest := restarts[0]; fastest > 2*time.Second {
			t.Errorf("the fastest of %d restarts of the kubelet took %v; want under 2 s", rounds, fastest)
		}
	})
	t.Run("theirs", func(t *testing.T) {
		m := newMachine(t)
		command := theirs(t, m.tree, m.kubelet.Root(), peer, "serve", m.config)
		m.run(t, command)
		m.kubelet.AwaitAllocatable(served, units)
		rest(t, started)
		t.Log("memory at rest: " + memory(t, command.Process))
		m.tree.Write(m.devices[0]+"/ports/1/state", "1: DOWN")
		time.Sleep(blind) // There is no event to wait for: it never checks.
		t.Logf("%v after a port went down: %d of %d allocatable", blind, m.kubelet.View(served).Allocatable, units)
		m.tree.Write(m.devices[0]+"/ports/1/state", "4: ACTIVE")
		restarts := m.restarts()
		t.Logf("kubelet's restart to allocatable: median %v, slowest %v", restarts[rounds/2], restarts[rounds-1])
		t.Log("memory right after all this: " + memory(t, command.Process))
		rest(t, calm)
		t.Log("memory after a rest: " + memory(t, command.Process))
	})
}
