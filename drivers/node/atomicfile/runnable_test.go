package atomicfile

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRunnableRejectsDirectoryOnFileSystemMountedNoexec(t *testing.T) {
	const mounted = "/proc" // systemd and container runtimes mount it noexec
	var fs unix.Statfs_t
	if err := unix.Statfs(mounted, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Flags&unix.ST_NOEXEC == 0 {
		t.Skip("/proc is not mounted noexec here")
	}
	if err := Runnable(mounted); err == nil || !strings.Contains(err.Error(), "stateDir") {
		t.Errorf("Runnable(%s) = %v, want an error that names stateDir", mounted, err)
	}
	if err := Runnable("/usr"); err != nil {
		t.Error(err)
	}
	if err := Runnable("/usr/nothing/here"); err == nil {
		t.Error("no error for a directory that is not there")
	}
}
