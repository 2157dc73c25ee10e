// Package filewatchtest runs tests where no inotify instance is available.
package filewatchtest

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inside is set in the environment of the process that has no inotify instances.
const inside = "GPUFABRIC_TEST_WITHOUT_INOTIFY"

// limit is the sysctl that gives a user namespace fewer inotify instances than the user outside has (namespaces(7),
// /proc/sys/user).
const limit = "/proc/sys/user/max_inotify_instances"

// Spent runs the rest of the calling test in a process of its own, in a user namespace without free inotify instances. No other
// process of the machine notices. It returns true in that process; in the caller it returns false once that process has ended, and
// the test must return.
func Spent(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		spend(t)
		return true
	}
	arguments := []string{"-test.run=^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$", "-test.v"}
	if deadline, ok := t.Deadline(); ok {
		arguments = append(arguments, "-test.timeout="+time.Until(deadline).String())
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", arguments...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		t.Skipf("this machine allows no user namespace, in which inotify instances can be limited: %v", err)
	}
	t.Logf("where no inotify instance is available:\n%s", out)
	if err != nil {
		t.Errorf("the test failed where no inotify instance is available: %v", err)
	}
	return false
}

func spend(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Restore(t) })
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err == nil {
		_ = unix.Close(fd)
		t.Fatal("an inotify instance is available where none should be")
	} else if !errors.Is(err, unix.EMFILE) {
		t.Fatalf("opening an inotify instance beyond the limit gives %v, not EMFILE as where the limit is spent", err)
	}
}

// Restore allows a test that Spent began to have inotify instances again.
func Restore(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(limit, []byte("128"), 0); err != nil {
		t.Error(err)
	}
}
