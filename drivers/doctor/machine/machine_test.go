package machine_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/doctor/machine"
	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/host"
)

// loaded is /proc/driver/nvidia/version of NVIDIA's open kernel modules.
const loaded = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)  Tue\n"

// node is a node's directories, as a pod of the Jobs sees them.
type node struct {
	t    *testing.T
	root string
	sys  *sysfstest.Tree
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, root: t.TempDir(), sys: sysfstest.New(t)}
	n.write("proc/devices", "Character devices:\n195 nvidia\n507 nvidia-caps-imex-channels\n\nBlock devices:\n")
	return n
}

func (n *node) write(name, text string) *node {
	n.t.Helper()
	path := filepath.Join(n.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return n
}

func (n *node) gpu(address string) *node {
	n.sys.AddFunction(sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: address, Vendor: "0x10de", Device: "0x2330",
		Class: "0x030200", Driver: "nvidia"})
	return n
}

// look runs `gpufabric doctor machine` on the node and returns what the kubelet would take into the pod's status.
func (n *node) look(flags ...string) preflight.Facts {
	n.t.Helper()
	report := filepath.Join(n.t.TempDir(), "termination-log")
	var out bytes.Buffer
	command := machine.Command(host.Host{Stdout: &out, Stderr: &out})
	command.SetArgs(append(flags, "--driver-root="+n.root+"/host=/", "--dev-root="+n.root+"/host/dev=/dev", "--sysfs-root="+n.sys.Sys,
		"--proc-devices="+n.root+"/proc/devices", "--report="+report))
	if err := command.ExecuteContext(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		n.t.Fatal(err)
	}
	if !strings.Contains(out.String(), string(text)) {
		n.t.Errorf("the log has %q, the status %q", out.String(), text)
	}
	var facts preflight.Facts
	if err := json.Unmarshal(text, &facts); err != nil {
		n.t.Fatal(err)
	}
	return facts
}

func TestMachineReportsItsHardware(t *testing.T) {
	n := newNode(t).gpu("0000:3b:00.0").gpu("0000:3c:00.0")
	n.sys.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3d:00.0"}})
	n.write("host/usr/lib64/libnvidia-ml.so.1", "").write("host/usr/lib64/libnvidia-ml.so.580.95.05", "")
	n.write("proc/driver/nvidia/version", loaded).write("proc/driver/nvidia/params", "ImexChannelCount: 2048\n")
	n.write("host/dev/nvidiactl", "").write("host/dev/nvidia0", "").write("host/dev/nvidia-uvm", "")
	got := n.look()
	if got.GPUs != 2 || got.Nodes != 1 || got.Driver != "580.95.05" || got.Trouble != "" || got.Channels != 2048 || got.RDMA != 1 ||
		got.Mellanox != 1 || got.CDI != "" || len(got.Unread) > 0 {
		t.Errorf("%+v", got)
	}
}

func TestMachineReportsDriverTrouble(t *testing.T) {
	for want, make := range map[string]func(*node){
		"DriverNotFound":       func(*node) {},
		"DriverNotLoaded":      func(n *node) { n.write("host/usr/lib64/libnvidia-ml.so.1", "") },
		"DriverVersionsDiffer": func(n *node) { n.library("570.1.1").write("proc/driver/nvidia/version", loaded) },
	} {
		n := newNode(t).gpu("0000:3b:00.0")
		make(n)
		if got := n.look(); got.Trouble != want || got.Says == "" || got.GPUs != 1 {
			t.Errorf("want %s: %+v", want, got)
		}
	}
	if got := newNode(t).look(); got.Trouble != "" || got.GPUs != 0 {
		t.Errorf("a node without a GPU: %+v", got)
	}
}

// library puts a driver's library of a version there, under both of its names.
func (n *node) library(version string) *node {
	n.t.Helper()
	n.write("host/usr/lib64/libnvidia-ml.so."+version, "")
	link := filepath.Join(n.root, "host/usr/lib64/libnvidia-ml.so.1")
	if err := os.Symlink("libnvidia-ml.so."+version, link); err != nil {
		n.t.Fatal(err)
	}
	return n
}
