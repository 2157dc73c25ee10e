//go:build rdmaguest

package kerneltest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/rdma/inventory"
)

// The machine's network controllers, by the last byte of their MAC addresses; tests/rdmakernel/machine.go defines them.
const (
	plainA   = 1 // on bus 0
	plainB   = 2
	switched = 3 // behind a switch of NUMA node 0, beside a display controller
	virtuals = 4 // on NUMA node 1, with virtual functions
	farA     = 5 // on NUMA node 1
	farB     = 6
)

// roots are the places of the guest's kernel interfaces.
func roots() inventory.Roots { return inventory.Roots{Sysfs: "/sys", Proc: "/proc"} }

// nic is a network controller: its interface and its PCI function.
type nic struct{ name, function string }

// find finds a network controller by its MAC address.
func find(t *testing.T, number int) nic {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Attrs().HardwareAddr.String() == fmt.Sprintf("52:54:00:00:00:%02x", number) {
			path, err := filepath.EvalSymlinks("/sys/class/net/" + link.Attrs().Name + "/device")
			if err != nil {
				t.Fatal(err)
			}
			return nic{link.Attrs().Name, filepath.Base(path)}
		}
	}
	t.Fatalf("no interface has the MAC address that ends with %02x", number)
	return nic{}
}

// up brings an interface up until the test ends, and waits until it has its carrier.
func up(t *testing.T, name string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatalf("bring %s up: %v", name, err)
	}
	eventually(t, name+" has its carrier", func() bool { return read("/sys/class/net/"+name+"/carrier") == "1" })
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkSetDown(link)
		}
	})
}

// command sends testhca a command.
func command(t *testing.T, format string, values ...any) {
	t.Helper()
	text := fmt.Sprintf(format, values...)
	if err := os.WriteFile("/sys/module/testhca/parameters/command", []byte(text), 0); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// add makes a device of testhca until the test ends.
func add(t *testing.T, name, function, layer string, ports int, net string) {
	t.Helper()
	command(t, "add %s %s %s %d %s", name, function, layer, ports, net)
	t.Cleanup(func() { remove(name) })
}

// remove removes a device of testhca. A test may already have removed it.
func remove(name string) {
	_ = os.WriteFile("/sys/module/testhca/parameters/command", []byte("remove "+name), 0)
}

// software makes a software device (rdma_rxe) until the test ends.
func software(t *testing.T, name, net string) {
	t.Helper()
	if err := netlink.RdmaLinkAdd(name, "rxe", net); err != nil {
		t.Fatalf("make %s on %s: %v", name, net, err)
	}
	t.Cleanup(func() { _ = netlink.RdmaLinkDel(name) })
}

func read(path string) string {
	content, _ := os.ReadFile(path)
	return strings.TrimSpace(string(content))
}

// eventually waits for the kernel's background work, which has no common event.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after two minutes it does not hold that %s", what)
		}
	}
}

// discover discovers the guest's devices and returns the named HCA; nil: it is not among them.
func discover(t *testing.T, name string) (*inventory.HCA, *inventory.Inventory) {
	t.Helper()
	found, err := inventory.Discover(t.Context(), roots())
	if err != nil {
		t.Fatal(err)
	}
	for i := range found.HCAs {
		if found.HCAs[i].Name == name {
			return &found.HCAs[i], found
		}
	}
	return nil, found
}

// exclusively sets the RDMA subsystem to exclusive mode until the test ends.
func exclusively(t *testing.T) {
	t.Helper()
	if err := netlink.RdmaSystemSetNetnsMode("exclusive"); err != nil {
		t.Fatalf("set exclusive mode: %v", err)
	}
	t.Cleanup(func() {
		// The kernel refuses while there are other namespaces, which end in the background.
		eventually(t, "the mode is shared again", func() bool { return netlink.RdmaSystemSetNetnsMode("shared") == nil })
	})
}

// namespace makes a network namespace, as a container runtime does for a pod, and returns its file's path. It ends with the test, or by
// end.
func namespace(t *testing.T, name string) (path string, end func()) {
	t.Helper()
	path = filepath.Join("/run", name)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // The thread ends with the goroutine: it is in another namespace.
		failed <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
		}()
	}()
	if err := <-failed; err != nil {
		t.Fatalf("make the network namespace %s: %v", name, err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = unix.Unmount(path, unix.MNT_DETACH)
			_ = os.Remove(path)
		}
	}
	t.Cleanup(end)
	return path, end
}

// inside runs do in the network namespace at path, with sysfs as a pod there sees it.
func inside(t *testing.T, path string, do func() error) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		failed <- func() error {
			handle, err := netns.GetFromPath(path)
			if err != nil {
				return err
			}
			defer handle.Close() //nolint:errcheck // read only
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := netns.Set(handle); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
				return err
			}
			return do()
		}()
	}()
	if err := <-failed; err != nil {
		t.Errorf("in %s: %v", path, err)
	}
}
