package exclusive

import (
	"errors"
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
)

// namespaces puts the test into a network namespace of its own that has the interface gf0, makes another one, and returns its path.
// There are no RDMA devices: the tests in drivers/rdma/kerneltest move those, on a kernel that has some.
func namespaces(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread() // Never unlocked: the thread ends with the test, and its namespace with it.
	path := filepath.Join(t.TempDir(), "pod")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		t.Skip("skipped: making a network namespace needs root")
	} else if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("skipped: keeping a network namespace needs the right to mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "gf0"}, PeerName: "gf0-peer"}); err != nil {
		t.Skipf("skipped: this kernel makes no veth interfaces: %v", err)
	}
	return path
}

// in reports where gf0 is.
func in(t *testing.T, pod string) string {
	t.Helper()
	var places []string
	look := func(place string, h *netlink.Handle, err error) {
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if _, err := h.LinkByName("gf0"); err == nil {
			places = append(places, place)
		}
	}
	h, err := netlink.NewHandle()
	look("node", h, err)
	target, err := netns.GetFromPath(pod)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close() //nolint:errcheck // read only
	h, err = netlink.NewHandleAt(target)
	look("pod", h, err)
	return strings.Join(places, " and ")
}

func TestLinksMoveIntoANamespaceAndBack(t *testing.T) {
	pod := namespaces(t)
	gf0, err := Netlink{}.Look("gf0")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func(i Interface, namespace string) ([]string, error)
		want string
	}{
		{"give", Netlink{}.GiveInterface, "pod"},
		{"give again", Netlink{}.GiveInterface, "pod"},
		{"take", Netlink{}.TakeInterface, "node"},
		{"take again", Netlink{}.TakeInterface, "node"},
	} {
		if _, err := step.do(gf0, pod); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := in(t, pod); got != step.want {
			t.Fatalf("%s: the interface is in the %s, want the %s", step.name, got, step.want)
		}
	}
	if _, err := (Netlink{}).GiveInterface(Interface{Name: "gf9"}, pod); err == nil ||
		!strings.Contains(err.Error(), "move the network interface gf9 to") {
		t.Errorf("an interface that is nowhere: %v", err)
	}
	for name, path := range map[string]string{"no file": pod + "-gone", "a plain file": filepath.Join(filepath.Dir(pod), "plain")} {
		if name == "a plain file" {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := (Netlink{}).TakeInterface(gf0, path); err != nil {
			t.Errorf("taking from a namespace that has ended (%s): %v", name, err)
		}
		if _, err := (Netlink{}).GiveInterface(gf0, path); err == nil {
			t.Errorf("%s was taken for a namespace", name)
		}
	}
}

func TestInterfacesThatDoNotComeBackAreAwaitedTogether(t *testing.T) {
	pod := namespaces(t)
	sysfs := t.TempDir()
	var away []Interface
	for n := range 8 {
		function := fmt.Sprintf("0000:%02x:00.0", n)
		if err := os.MkdirAll(filepath.Join(sysfs, "bus/pci/devices", function), 0o755); err != nil {
			t.Fatal(err)
		}
		away = append(away, Interface{Name: fmt.Sprintf("ens%d", n), Parent: function})
	}
	links := Netlink{Sysfs: sysfs}
	wait := func(what, namespace string, interfaces []Interface, least, most time.Duration) {
		t.Helper()
		fastest := time.Hour // a busy machine may take longer now and then
		for range 5 {
			began := time.Now()
			links.Await(t.Context(), namespace, interfaces)
			if fastest = min(fastest, time.Since(began)); fastest < most {
				break
			}
		}
		if fastest < least || fastest >= most {
			t.Errorf("%s: it took %v, want %v to %v", what, fastest, least, most)
		}
	}
	wait("eight of a namespace that has ended", pod+"-gone", away, back, 4*back)
	wait("a namespace that lives", pod, away, 0, back)
	wait("an interface that is back", pod+"-gone", []Interface{{Name: "gf0"}}, 0, back)
	wait("hardware that went", pod+"-gone", []Interface{{Name: "ens9", Parent: "0000:99:00.0"}}, 0, back/2)
	if _, err := links.TakeInterface(away[0], pod+"-gone"); err == nil || !strings.Contains(err.Error(), "is not back on the node") {
		t.Errorf("taking one that is not back: %v", err)
	}
}

// The kernel returns a scalable function's interface as late as a PCI function's. Its settings would be lost if it counted as gone.
func TestNetlinkTakeInterfaceWaitsForScalableFunctionWhenNamespaceEnded(t *testing.T) {
	pod := namespaces(t)
	sysfs := t.TempDir()
	const scalable, removed = "mlx5_core.sf.2", "mlx5_core.sf.3"
	if err := os.MkdirAll(filepath.Join(sysfs, "bus/auxiliary/devices", scalable), 0o755); err != nil {
		t.Fatal(err)
	}
	links := Netlink{Sysfs: sysfs}
	_, err := links.TakeInterface(Interface{Name: "ens2f0s2", Parent: scalable, Up: true}, pod+"-gone")
	if err == nil || !strings.Contains(err.Error(), "is not back on the node") {
		t.Errorf("%s, whose interface is not back: %v", scalable, err)
	}
	if _, err := links.TakeInterface(Interface{Name: "ens2f0s3", Parent: removed, Up: true}, pod+"-gone"); err != nil {
		t.Errorf("%s, which was removed: %v", removed, err)
	}
}
