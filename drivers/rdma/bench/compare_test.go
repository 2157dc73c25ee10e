// Package bench_test times discovery beside k8s-rdma-shared-dev-plugin's, on the same trees.
package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/inventory"
)

// rounds is how often a discovery is timed.
const rounds = 5

// functions makes a tree of n functions on four cards, one physical function each and the rest virtual. They have no network
// interfaces: the other plugin queries netlink for each, so its devices would have to exist. Leaving that work out favours the other
// plugin.
func functions(t testing.TB, n int) *sysfstest.Tree {
	tree := sysfstest.New(t)
	for card := range 4 {
		parent := fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", 0x10+card*0x10, 0x10+card*0x10)
		var physical string
		for i := range n / 4 {
			f := sysfstest.Function{Parent: parent, Address: fmt.Sprintf("0000:%02x:%02x.%d", 0x11+card*0x10, i/8, i%8), Class: "0x020000"}
			if i == 0 {
				f.TotalVFs, f.VFs = max(n/4-1, 1), n/4-1
				physical = "devices/" + parent + "/" + f.Address
			} else {
				f.PhysFn, f.VirtIndex, f.Device = physical, i-1, "0x101e"
			}
			tree.AddHCA(sysfstest.HCA{Function: f, Ethernet: true})
		}
	}
	return tree
}

// TestDiscoveryBesideTheOtherPlugin reports both figures. It needs the other plugin's timer, which compare.sh builds: PEER names it.
func TestDiscoveryBesideTheOtherPlugin(t *testing.T) {
	peer := os.Getenv("PEER")
	if peer == "" {
		t.Skip("skipped: run drivers/rdma/bench/compare.sh, which builds the other plugin")
	}
	config := write(t, "config.json", `{"configList": [{"resourceName": "a", "rdmaHcaMax": 1000, "selectors": {"vendors": ["15b3"]}}]}`)
	for _, n := range []int{8, 64, 512} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			tree := functions(t, n)
			var took []time.Duration
			for range rounds {
				start := time.Now()
				found, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: tree.Sys})
				if err != nil || len(found.HCAs) != n {
					t.Fatalf("found %v, %v", found, err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			t.Logf("ours:   %d devices, median %v, fastest %v", n, took[rounds/2], took[0])
			command := theirs(t, tree, "", peer, "discover", config)
			out, err := command.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if last := lines[len(lines)-1]; err == nil && strings.HasPrefix(last, fmt.Sprintf("theirs: %d devices", n)) {
				t.Log(last)
			} else {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// theirs is a command of the other plugin. It reads only /sys, /dev/infiniband and /var/lib/kubelet, so it gets them in a mount
// namespace of its own; kubelet may be empty.
func theirs(t *testing.T, tree *sysfstest.Tree, kubelet string, command ...string) *exec.Cmd {
	t.Helper()
	// Its library does not start without a file of vendor names.
	ids := write(t, "pci.ids", "15b3  Mellanox Technologies\n\t1021  MT2910 Family [ConnectX-7]\nC 02  Network controller\n\t00  Ethernet "+
		"controller\n")
	script := fmt.Sprintf("mount --rbind %s /sys && mount -t tmpfs none /dev && mkdir /dev/infiniband && mount --bind %s/infiniband "+
		"/dev/infiniband", tree.Sys, tree.Dev)
	if kubelet != "" {
		script += fmt.Sprintf(" && mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount --bind %s /var/lib/kubelet", kubelet)
	}
	c := exec.CommandContext(t.Context(), "unshare", "-Urm", "sh", "-c", script+" && exec "+strings.Join(command, " "))
	c.Env = append(os.Environ(), "PCIDB_PATH="+ids)
	return c
}

// write writes a file of the test's own and returns its path.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
