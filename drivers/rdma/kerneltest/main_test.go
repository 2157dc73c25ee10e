//go:build rdmaguest

package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// This keeps the first thread for the first goroutine. A thread that changed its network namespace for a test ends with its
// goroutine, and the first thread cannot end.
func init() { runtime.LockOSThread() }

// TestMain is the machine's first process. It prepares the machine, runs the tests, and powers it off.
func TestMain(m *testing.M) {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "these tests are the first process of a machine of their own: run make rdma-kernel")
		os.Exit(1)
	}
	code := 1
	if err := boot(); err != nil {
		fmt.Println("boot:", err)
	} else {
		code = m.Run()
	}
	fmt.Printf("\nguest ended: %d\n", code)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func boot() error {
	for _, m := range []struct{ kind, target string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"},
		{"tmpfs", "/tmp"}} {
		if err := unix.Mount(m.kind, m.target, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(order)) {
		if err := load(name); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

func load(name string) error {
	file, err := os.Open(filepath.Join("/modules", name))
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // read only
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", name, err)
	}
	return nil
}
