package limiter

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// A runtime that copies images (containerd's native snapshotter) may have a container's files on the file system of the node's. One that
// mounts each layer of an image (stargz, nydus, erofs) gives the image's files other devices than their directory's.
func TestLibraryReadsOnlyMountedLimits(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("skipped: the library cannot be built without gcc")
	}
	for arguments, want := range map[string]string{"mount": "GPU-01010101 4096\n", "layers": ""} {
		t.Run(arguments, func(t *testing.T) {
			directory := t.TempDir()
			program := filepath.Join(directory, "program")
			if out, err := exec.CommandContext(t.Context(), "gcc", "-std=gnu11", "-Ilibrary", `-DLIMITS_FILE="`+directory+`/limits"`, "-o", program,
				"testdata/mounted.c", "library/limits.c", "library/process.c", "-pthread").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			cmd := exec.CommandContext(t.Context(), program, arguments)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && (!errors.As(err, &exit) || exit.ExitCode() == 2) {
				t.Skipf("skipped: this machine makes no such mounts: %v\n%s", err, out)
			}
			if err != nil || string(out) != want {
				t.Errorf("got %q, %v; want %q", out, err, want)
			}
		})
	}
}
