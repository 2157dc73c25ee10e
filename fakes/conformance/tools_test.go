package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }

func render(t *testing.T, name string) (string, *profile.Node) {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Node: 1, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	return root, p.Node(1)
}

// need skips the test where a program is missing, and names the Debian package that has it.
func need(t *testing.T, program, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("skipped: %s is not installed (apt-get install %s)", program, pkg)
	}
	return path
}

func output(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// underSys runs a program in a mount namespace where the fake tree is bound on /sys.
func underSys(t *testing.T, root, program string, args ...string) string {
	t.Helper()
	need(t, "unshare", "util-linux")
	if err := exec.CommandContext(t.Context(), "unshare", "-Urm", "true").Run(); err != nil {
		t.Skipf("skipped: this user may not make a mount namespace here: %v", err)
	}
	script := fmt.Sprintf("mount --rbind %s/sys /sys && exec %s %s", root, program, strings.Join(args, " "))
	return output(t, nil, "unshare", "-Urm", "sh", "-c", script)
}

func wants(t *testing.T, out string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestLspciListsEveryDevice(t *testing.T) {
	lspci := need(t, "lspci", "pciutils")
	for _, name := range profile.Names() {
		root, n := render(t, name)
		out := output(t, nil, lspci, "-A", "linux-sysfs", "-O", "sysfs.path="+root+"/sys/bus/pci", "-Dn")
		for _, g := range n.GPUs {
			wants(t, out, fmt.Sprintf("%s 0302: 10de:%04x (rev a1)", g.Address, n.Profile.GPUs.Model.ID().Device))
		}
		for _, nic := range n.NICs {
			if !strings.Contains(out, nic.Address.String()+" 02") {
				t.Errorf("%s: no %s in:\n%s", name, nic.Address, out)
			}
		}
	}
}

func TestLspciShowsTheRecordedNIC(t *testing.T) {
	lspci := need(t, "lspci", "pciutils")
	root, _ := render(t, "gb200-nvl72")
	args := []string{"-A", "linux-sysfs", "-O", "sysfs.path=" + root + "/sys/bus/pci"}
	wants(t, output(t, nil, lspci, append(args, "-Dn", "-s", "0000:03:00.0")...), "0000:03:00.0 0207: 15b3:1021")
	wants(t, output(t, nil, lspci, append(args, "-vv", "-s", "0010:03:00.0")...), "NUMA node: 1", "Kernel driver in use: mlx5_core")
	// The tree shows that bridges lead to the devices.
	wants(t, output(t, nil, lspci, append(args, "-t", "-D")...), "0006:00]---00.0-[01-03]")
}

func TestIbstatShowsEveryPort(t *testing.T) {
	ibstat := need(t, "ibstat", "infiniband-diags")
	root, n := render(t, "gb200-nvl72")
	out := underSys(t, root, ibstat)
	for _, nic := range n.NICs {
		wants(t, out, fmt.Sprintf("CA '%s'", nic.Device), fmt.Sprintf("Node GUID: 0x%016x", nic.NodeGUID))
	}
	wants(t, underSys(t, root, ibstat, "mlx5_0"), "CA type: MT4129", "Firmware version: 28.44.2524", "State: Active", "Physical state: LinkUp",
		"Rate: 400", "SM lid: 1", "Capability mask: 0xa751e848", "Link layer: InfiniBand")
}

func TestIbstatusShowsRatesAndLinkLayers(t *testing.T) {
	root, _ := render(t, "gb200-nvl72")
	wants(t, underSys(t, root, need(t, "ibstatus", "infiniband-diags")), "4: ACTIVE", "400 Gb/sec (4X NDR)", "link_layer:\t InfiniBand",
		"link_layer:\t Ethernet")
}

// The ports of an e-switch carry raw packets and have no GIDs (mlx5_port_rep_immutable), and ibstat prints nothing of a port without gids/0
// (libibumad). So the virtual functions of such a card are shown, as on a real machine.
func TestIbstatShowsVirtualFunctionsOfESwitch(t *testing.T) {
	ibstat := need(t, "ibstat", "infiniband-diags")
	root, _ := render(t, "switchdev")
	wants(t, underSys(t, root, ibstat, "mlx5_2"), "CA type: MT4125", "Number of ports: 1", "State: Active", "Link layer: Ethernet")
}

// lspci finds Vital Product Data by the function's configuration space.
func TestLspciReadsVPDOfDataDirectFunction(t *testing.T) {
	lspci := need(t, "lspci", "pciutils")
	root, n := render(t, "gb300-nvl72")
	show := func(address string) string {
		return output(t, nil, lspci, "-A", "linux-sysfs", "-O", "sysfs.path="+root+"/sys/bus/pci", "-Dn", "-vv", "-s", address)
	}
	v3 := func(text string) string {
		_, after, found := strings.Cut(text, "[V3] Vendor specific: ")
		line, _, _ := strings.Cut(after, "\n")
		if !found || line == "" {
			t.Errorf("no field V3 in:\n%s", text)
		}
		return line
	}
	fields := map[string]bool{}
	for _, nic := range n.NICs {
		if nic.DataDirect == nil {
			continue
		}
		direct := show(nic.DataDirect.PCI)
		wants(t, direct, nic.DataDirect.PCI+" 0801: 15b3:2100", "Kernel driver in use: mlx5_ib")
		of := v3(direct)
		if of != v3(show(nic.PCI)) {
			t.Errorf("the data-direct function %s has another V3 than %s", nic.DataDirect.PCI, nic.PCI)
		}
		fields[of] = true
	}
	if len(fields) != 4 {
		t.Errorf("four NICs have %d different fields V3", len(fields))
	}
}

func TestIbvDevicesListsEveryDevice(t *testing.T) {
	for _, name := range []string{"h100-hgx", "switchdev"} {
		t.Run(name, func(t *testing.T) { listsVerbs(t, name) })
	}
}

func listsVerbs(t *testing.T, name string) {
	t.Helper()
	need(t, "ibv_devices", "ibverbs-utils ibverbs-providers")
	root, n := render(t, name)
	// The library expects the device nodes in the kernel's places, and the node may be below /dev itself.
	script := fmt.Sprintf("d=$(mktemp -d -p /tmp) && cp -r %[1]s/dev/infiniband $d && mount --rbind %[1]s/sys /sys && mount -t tmpfs none "+
		"/dev && cp -r $d/infiniband /dev && rm -r $d && exec ibv_devices", root)
	need(t, "unshare", "util-linux")
	out := output(t, nil, "unshare", "-Urm", "sh", "-c", script)
	for _, nic := range n.NICs {
		wants(t, out, nic.Device, fmt.Sprintf("%016x", nic.NodeGUID))
	}
}

func TestLstopoShowsTheInfiniBandDevices(t *testing.T) {
	lstopo := need(t, "lstopo-no-graphics", "hwloc")
	root, n := render(t, "gb200-nvl72")
	env := []string{"HWLOC_FSROOT=" + root, "HWLOC_THISSYSTEM=0", "HWLOC_COMPONENTS=linux,stop"}
	out := output(t, env, lstopo, "--of", "console", "--whole-io", "-v")
	for _, nic := range n.NICs {
		wants(t, out, nic.Device)
	}
}
