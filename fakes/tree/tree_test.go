package tree_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs/sysfs"
	"golang.org/x/sys/unix"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

func load(t testing.TB, name string) *profile.Profile {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func render(t testing.TB, name string) (string, *profile.Node) {
	t.Helper()
	root, p := t.TempDir(), load(t, name)
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Node: 2, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	return root, p.Node(2)
}

func read(t testing.TB, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestTreeHasNoDeadLinks(t *testing.T) {
	for _, name := range profile.Names() {
		root, _ := render(t, name)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink == 0 {
				return err
			}
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			if filepath.IsAbs(target) {
				t.Errorf("%s is absolute: %s", path, target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestTreeHasTheValuesOfTheProfile(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			root, n := render(t, name)
			for _, g := range n.GPUs {
				dir := filepath.Join(root, "sys/bus/pci/devices", g.Address.String())
				if got := read(t, dir, "vendor"); got != "0x10de" {
					t.Errorf("%s: vendor %s", g.PCI, got)
				}
				if !strings.Contains(read(t, root, "proc/driver/nvidia/gpus", g.Address.String(), "information"), g.UUID) {
					t.Errorf("%s: proc does not know its UUID", g.PCI)
				}
			}
			for _, nic := range n.NICs {
				dir := filepath.Join(root, "sys/class/infiniband", nic.Device)
				real, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
				if err != nil || filepath.Base(real) != nic.Address.String() || !strings.Contains(real, "/sys/devices/pci") {
					t.Errorf("%s is at %s: %v", nic.Device, real, err)
				}
				if got := read(t, dir, "ports/1/link_layer"); got != nic.Link {
					t.Errorf("%s: link layer %s", nic.Device, got)
				}
				netdev := read(t, root, "sys/class/net", nic.Netdev, "device/infiniband", nic.Device, "node_guid")
				if netdev != read(t, dir, "node_guid") {
					t.Errorf("%s and %s are two devices", nic.Device, nic.Netdev)
				}
				if nic.Link == "InfiniBand" {
					// An IPoIB address ends in the port's GUID.
					guid := strings.ReplaceAll(read(t, dir, "node_guid"), ":", "")
					address := strings.ReplaceAll(read(t, root, "sys/class/net", nic.Netdev, "address"), ":", "")
					if len(address) != 40 || !strings.HasSuffix(address, guid) {
						t.Errorf("%s: address %s, GUID %s", nic.Netdev, address, guid)
					}
				}
			}
		})
	}
}

func TestPrometheusReadsEveryInfiniBandDevice(t *testing.T) {
	for _, name := range profile.Names() {
		root, n := render(t, name)
		if len(n.NICs) == 0 {
			continue // there is no class of devices that no module made
		}
		sys, err := sysfs.NewFS(filepath.Join(root, "sys"))
		if err != nil {
			t.Fatal(err)
		}
		devices, err := sys.InfiniBandClass()
		if err != nil || len(devices) != len(n.NICs) {
			t.Fatalf("%s: %d devices, %v", name, len(devices), err)
		}
		for _, nic := range n.NICs {
			d := devices[nic.Device]
			port, ok := d.Ports[1]
			if !ok || port.Rate != uint64(nic.RateGbps)*1e9/8 || d.HCAType != nic.Details().HCAType {
				t.Errorf("%s: %s: %+v", name, nic.Device, d)
			}
			if port.HwCounters.OutOfBuffer == nil || port.Counters.PortRcvData == nil {
				t.Errorf("%s: %s has no counters", name, nic.Device)
			}
		}
		if _, err := sys.NetClass(); err != nil {
			t.Errorf("%s: network interfaces: %v", name, err)
		}
	}
}

func TestProcDevicesNamesTheMajorsBetweenTheHeadings(t *testing.T) {
	root, _ := render(t, "gb200-nvl72")
	text := read(t, root, "proc/devices")
	start, end := strings.Index(text, "Character devices:"), strings.Index(text, "Block devices:")
	for _, want := range []string{"195 nvidia\n", "501 nvidia-caps-imex-channels\n", "235 nvidia-caps\n", "510 nvidia-uvm\n",
		"231 infiniband_verbs\n"} {
		if i := strings.Index(text, want); i < start || i > end {
			t.Errorf("%q is not between the headings of:\n%s", want, text)
		}
	}
	if got := read(t, root, "proc/driver/nvidia/capabilities/fabric-imex-mgmt"); !strings.HasPrefix(got, "DeviceFileMinor: ") {
		t.Error(got)
	}
	root, _ = render(t, "rdma-only")
	if strings.Contains(read(t, root, "proc/devices"), "nvidia") {
		t.Error("a machine without GPUs has NVIDIA devices")
	}
}

func TestDevicesAreRealWhereThatIsPermitted(t *testing.T) {
	root := t.TempDir()
	p := load(t, "gb200-nvl72")
	p.IMEX.CreateChannel0 = true
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root, "proc/driver/nvidia/params"); !strings.Contains(got, "CreateImexChannel0: 1") {
		t.Errorf("the module's parameters are\n%s", got)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(root, "dev/nvidia-caps-imex-channels/channel0"), &st); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		t.Skip("skipped: this user may not make device nodes here")
	}
	if unix.Major(st.Rdev) != 501 || unix.Minor(st.Rdev) != 0 || st.Mode&0o777 != 0o666 {
		t.Errorf("channel0 is %d:%d, mode %o", unix.Major(st.Rdev), unix.Minor(st.Rdev), st.Mode)
	}
}

func TestDeviceNodesThatTheDriverLeavesToItsUsersAreMissing(t *testing.T) {
	root, _ := render(t, "gb200-nvl72")
	if got := read(t, root, "proc/driver/nvidia/params"); !strings.Contains(got, "ImexChannelCount: 2048\nCreateImexChannel0: 0") {
		t.Errorf("the module's parameters are\n%s", got)
	}
	left, err := filepath.Glob(filepath.Join(root, "dev/nvidia-caps*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v are there before anybody made them (error: %v)", left, err)
	}
}

func TestVirtualFunctionsBelongToTheirPhysicalOne(t *testing.T) {
	root, n := render(t, "sriov")
	if len(n.NICs) != 14 {
		t.Fatalf("%d NICs; want 2 and 12 virtual functions", len(n.NICs))
	}
	pf := filepath.Join(root, "sys/bus/pci/devices/0000:31:00.0")
	if got := read(t, pf, "sriov_numvfs") + "/" + read(t, pf, "sriov_totalvfs"); got != "8/16" {
		t.Error(got)
	}
	vf, err := filepath.EvalSymlinks(filepath.Join(pf, "virtfn7"))
	if err != nil || filepath.Base(vf) != "0000:31:01.1" {
		t.Errorf("the eighth is %s, %v", vf, err)
	}
	back, err := filepath.EvalSymlinks(filepath.Join(vf, "physfn"))
	if err != nil || filepath.Base(back) != "0000:31:00.0" {
		t.Errorf("its physical function is %s, %v", back, err)
	}
	if got := read(t, vf, "device"); got != "0x101e" {
		t.Error(got)
	}
}

func TestRenderingAgainReplacesEverythingButTheDirectories(t *testing.T) {
	root, _ := render(t, "gb200-nvl72")
	before, err := os.Stat(filepath.Join(root, "sys"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Render(t.Context(), tree.Options{Profile: load(t, "rdma-only"), Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(filepath.Join(root, "sys"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("sys is another directory now, so mounts of it show the old machine: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "dev/nvidia0")); err == nil {
		t.Error("the old machine's GPU is still there")
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{".fakefabric", "dev", "driver", "proc", "state", "sys"}, names); diff != "" {
		t.Errorf("in the root:\n%s", diff)
	}
	if err := tree.Remove(root); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Open(root); err == nil {
		t.Error("the state is still there")
	}
}

func TestRenderKeepsTheOldTreeOnFailure(t *testing.T) {
	root, _ := render(t, "gb200-nvl72")
	err := tree.Render(t.Context(), tree.Options{Profile: load(t, "t4-edge"), Root: root, LibraryDir: "/nowhere"})
	if err == nil || !strings.Contains(err.Error(), "make -C fakes") {
		t.Errorf("no libraries: %v", err)
	}
	if r, err := tree.ReadRendered(root); err != nil || r.Profile != "gb200-nvl72" {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := os.Stat(filepath.Join(root, "dev/nvidia0")); err != nil {
		t.Error(err)
	}
}

func TestRenderRejectsANodeOutsideTheCluster(t *testing.T) {
	for says, o := range map[string]tree.Options{"not among 2 nodes": {Node: 2, Nodes: 2}, "node -1 of": {Node: -1},
		"-3 nodes of": {Nodes: -3}, "0 to 1048575 are allowed": {Node: profile.MaxNodes},
		"1 to 1048576 are allowed": {Nodes: profile.MaxNodes + 1}} {
		o.Profile, o.Root = load(t, "t4-edge"), t.TempDir()
		if err := tree.Render(t.Context(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("node %d of %d: %v", o.Node, o.Nodes, err)
		}
	}
}

// TestRenderKeepsForeignDirectories checks that the renderer refuses directories that a mistyped --root may name: /, a home
// directory with dev, a checkout.
func TestRenderKeepsForeignDirectories(t *testing.T) {
	for _, part := range []string{"sys", "proc", "dev", "driver"} {
		root := t.TempDir()
		work := filepath.Join(root, part, "work")
		if err := os.MkdirAll(work, 0o755); err != nil {
			t.Fatal(err)
		}
		err := tree.Render(t.Context(), tree.Options{Profile: load(t, "t4-edge"), Root: root, PlainDevices: true})
		if err == nil || !strings.Contains(err.Error(), filepath.Dir(work)) {
			t.Errorf("rendered over %s: %v", part, err)
		}
		if err := tree.Remove(root); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 {
			t.Errorf("%v %v are left in the root", entries, err)
		}
		if _, err := os.Stat(work); err != nil {
			t.Error(err)
		}
	}
}

// A driver makes device nodes in its configured /dev, also while the hardware is away.
func TestRenderReplacesFilesOfADriver(t *testing.T) {
	root, _ := render(t, "gb200-nvl72")
	if err := tree.Remove(root); err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(root, "dev/nvidia-caps-imex-channels")
	if err := os.MkdirAll(stray, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tree.Render(t.Context(), tree.Options{Profile: load(t, "t4-edge"), Root: root, PlainDevices: true}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stray); err == nil {
		t.Error("it is still there")
	}
}

// TestTreeOfANodeIsSmall measures a node's size on disk: its tools are hard links to one program, so they do not count.
func TestTreeOfANodeIsSmall(t *testing.T) {
	build := built.Dir(t)
	for _, name := range profile.Names() {
		root := t.TempDir()
		o := tree.Options{Profile: load(t, name), Root: root, LibraryDir: filepath.Join(build, "lib"), Tools: filepath.Join(build, "fakefabric")}
		if err := tree.Render(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		var total int64
		err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
			if err != nil || slices.Contains(tree.Tools, d.Name()) {
				return err
			}
			info, err := d.Info()
			if err == nil {
				total += info.Size()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("%s: %d KiB", name, total>>10); total > 2<<20 {
			t.Errorf("%s: %d bytes; 2 MiB is the most", name, total)
		}
	}
}

// TestDeviceOfAGPURejectsIoctls pins what the README promises to programs that speak to the driver by themselves.
func TestDeviceOfAGPURejectsIoctls(t *testing.T) {
	p, err := profile.Load("t4-edge")
	if err != nil {
		t.Fatal(err)
	}
	for _, plain := range []bool{true, false} {
		root := t.TempDir()
		if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: plain}); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(filepath.Join(root, "dev/nvidia0"), os.O_RDWR, 0)
		if err != nil {
			if plain || !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.EACCES) { // a mount may forbid device nodes
				t.Errorf("plain %t: %v", plain, err)
			}
			continue
		}
		const cardInfo = 0xc90046c8 // NV_ESC_CARD_INFO of open-gpu-kernel-modules, nv-ioctl-numbers.h
		if _, err := unix.IoctlGetInt(int(f.Fd()), cardInfo); !errors.Is(err, unix.ENOTTY) {
			t.Errorf("plain %t: ioctl returns %v", plain, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestDriverRootHasDevicesAndStateForNVIDIAsPlugins(t *testing.T) {
	root := t.TempDir()
	o := tree.Options{Profile: load(t, "gb200-nvl72"), Root: root, PlainDevices: true}
	places := []string{"driver/dev/nvidia3", "driver/dev/nvidiactl", "driver/run/nvidia-persistenced/socket",
		"driver/proc/driver/nvidia/capabilities/fabric-imex-mgmt"}
	for _, wanted := range []bool{false, true, false} {
		o.NVIDIAPlugins = wanted
		if err := tree.Render(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for _, place := range places {
			if _, err := os.Stat(filepath.Join(root, place)); (err == nil) != wanted {
				t.Errorf("%s with NVIDIAPlugins %t: %v", place, wanted, err)
			}
		}
		if r, err := tree.ReadRendered(root); err != nil || r.NVIDIAPlugins != wanted {
			t.Errorf("rendered %+v, %v; want NVIDIAPlugins %t", r, err, wanted)
		}
		if !wanted {
			continue
		}
		own, err := os.Stat(filepath.Join(root, "state/node"))
		if err != nil {
			t.Fatal(err)
		}
		if shared, err := os.Stat(filepath.Join(root, places[2])); err != nil || !os.SameFile(own, shared) {
			t.Errorf("the state for containers is not the node's: %v", err)
		}
	}
}

// A node has the hardware of one profile, whole, whichever of several renderings was last.
func TestRenderingsOfTwoProfilesDoNotMix(t *testing.T) {
	root := t.TempDir()
	profiles := []*profile.Profile{load(t, "h100-hgx"), load(t, "t4-edge"), load(t, "rdma-only")}
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			o := tree.Options{Profile: profiles[i%len(profiles)], Root: root, PlainDevices: true}
			if err := tree.Render(t.Context(), o); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	r, err := tree.ReadRendered(root)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := filepath.Glob(filepath.Join(root, "dev/nvidia[0-9]*"))
	if err != nil || len(nodes) != r.GPUs {
		t.Errorf("%d device nodes, %v, and %d GPUs", len(nodes), err, r.GPUs)
	}
	nics, _ := filepath.Glob(filepath.Join(root, "sys/class/infiniband/*"))
	if len(nics) != r.NICs {
		t.Errorf("%d InfiniBand devices and %d NICs", len(nics), r.NICs)
	}
	f, err := state.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if b, err := f.Read(); err != nil || len(b.GPUs) != r.GPUs {
		t.Errorf("%+v, %v, and %d GPUs in the rendering", b, err, r.GPUs)
	}
}
