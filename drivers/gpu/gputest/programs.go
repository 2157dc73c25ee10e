package gputest

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// NVIDIAProgram is the unpacked Debian package of an NVIDIA program, below the directory of tests/nvidia-programs: package_version.
// It skips the test where that is missing.
func NVIDIAProgram(t testing.TB, packageVersion string) string {
	t.Helper()
	directory := os.Getenv("GPUFABRIC_NVIDIA_PROGRAMS")
	if directory == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("no cache directory for programs of NVIDIA's: %v", err)
		}
		directory = filepath.Join(cache, "gpufabric/nvidia")
	}
	found, err := filepath.Glob(filepath.Join(directory, packageVersion+"*"))
	if err != nil || len(found) == 0 {
		t.Skipf("%s is not below %s: run tests/nvidia-programs (it needs apt and a Debian mirror)", packageVersion, directory)
	}
	return slices.Max(found)
}

// DriverRoot makes a driver root from the files of several roots; later ones replace earlier ones. With usrMerged, /lib and /lib64
// are links to /usr.
func DriverRoot(t testing.TB, usrMerged bool, from ...string) string {
	t.Helper()
	root := t.TempDir()
	if usrMerged {
		for _, name := range []string{"lib", "lib64"} {
			if err := os.MkdirAll(filepath.Join(root, "usr", name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, source := range from {
		err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || path == source {
				return err
			}
			below := strings.TrimPrefix(path, source)
			target := filepath.Join(root, below)
			switch {
			case strings.HasPrefix(below, "/usr/share"):
				return fs.SkipDir
			case entry.IsDir():
				if info, err := os.Stat(target); err == nil && info.IsDir() {
					return nil
				}
				return os.MkdirAll(target, 0o755)
			case entry.Type() == fs.ModeSymlink:
				to, err := os.Readlink(path)
				if err != nil {
					return err
				}
				return os.Symlink(to, target)
			}
			return copyFile(path, target)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func copyFile(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755) //nolint:gosec // a program
}

// NeedsMounts skips a test where this process cannot have a mount namespace of its own.
func NeedsMounts(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: a program of the driver has a mount namespace of its own")
	}
	ended := make(chan error)
	go func() { // its thread is not used again, since it stays locked
		ended <- inOwnThread()
	}()
	if err := <-ended; err != nil {
		t.Skipf("this machine allows no mount namespaces: %v", err)
	}
}

func inOwnThread() error {
	// When a goroutine ends while it is locked to its thread, the runtime ends the thread too.
	runtime.LockOSThread()
	return syscall.Unshare(syscall.CLONE_NEWNS)
}
