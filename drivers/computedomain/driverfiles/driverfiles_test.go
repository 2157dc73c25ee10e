package driverfiles

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/hardware/driver"
)

// The stand-in for nvidia-imex opens IMEX's library by name, as NVIDIA's does. It looks up a host, which makes the C library
// open its own parts, and prints which files it has mapped.
const program = `
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
int main(void) {
	char line[4096];
	struct addrinfo *found;
	if (!dlopen("libnvidia-imex.so.1", RTLD_NOW)) { fprintf(stderr, "%s\n", dlerror()); return 1; }
	getaddrinfo("localhost", NULL, NULL, &found);
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) fputs(line, stdout);
	return 0;
}
`

func compile(t *testing.T, source, to string, flags ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "source.c")
	write(t, file, source)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", append([]string{"-o", to, file}, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func loaderOfThisMachine() string {
	return map[string]string{"amd64": "/lib64/ld-linux-x86-64.so.2", "arm64": "/lib/ld-linux-aarch64.so.1"}[runtime.GOARCH]
}

// systemRoot is a driver root with this machine's C library in it, and links of the kind that drivers have.
func systemRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	compile(t, program, filepath.Join(root, "usr/sbin/nvidia-imex"))
	compile(t, program, filepath.Join(root, "usr/sbin/nvidia-imex-ctl"))
	compile(t, "int imex(void) { return 0; }", filepath.Join(root, "usr/lib64/nvidia/libnvidia-imex.so.580.95.05"), "-shared", "-fPIC",
		"-Wl,-soname,libnvidia-imex.so.1")
	link(t, "/usr/lib64/nvidia/libnvidia-imex.so.580.95.05", filepath.Join(root, "usr/lib64/libnvidia-imex.so.1"))
	for _, name := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2", "libnss_files.so.2"} {
		for _, dir := range []string{"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				write(t, filepath.Join(root, "usr/lib", filepath.Base(dir), name), string(data))
				break
			}
		}
	}
	loader := loaderOfThisMachine()
	data, err := os.ReadFile(loader)
	if err != nil {
		t.Skipf("this machine's programs are not started by %s: %v", loader, err)
	}
	write(t, filepath.Join(root, "usr/lib/the-loader"), string(data))
	link(t, "/usr/lib/the-loader", filepath.Join(root, loader))
	return root
}

// container makes the files of a set below a directory.
func container(t *testing.T, root string, set *Set) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range set.Files {
		data, err := os.ReadFile(filepath.Join(root, strings.TrimPrefix(file.Host, "/run/nvidia/driver")))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, file.Container), string(data))
	}
	return dir
}

func TestProgramDoesNotUseFilesOfTheImage(t *testing.T) {
	root := systemRoot(t)
	set, err := Find(driver.Place{Path: root, Host: "/run/nvidia/driver"})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range set.Files {
		if !strings.HasPrefix(file.Host, "/run/nvidia/driver/usr/") || !strings.HasPrefix(file.Container, "/driver/") {
			t.Errorf("%+v: want a real file of the driver root, as the node calls it", file)
		}
	}
	dir := container(t, root, set)
	run := exec.CommandContext(t.Context(), filepath.Join(dir, set.Loader), "--inhibit-cache", "--library-path",
		filepath.Join(dir, filepath.Dir(set.Loader)), filepath.Join(dir, set.Daemon))
	// Files that a program finds by its environment must not matter either.
	run.Env = []string{}
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	loaded := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") || !strings.Contains(fields[1], "x") {
			continue
		}
		loaded++
		if !strings.HasPrefix(fields[5], dir) {
			t.Errorf("it runs code of %s, which is not the node's", fields[5])
		}
	}
	if loaded < 4 { // the loader, the program, the C library, IMEX's library
		t.Errorf("%d files with code:\n%s", loaded, out)
	}
}

func TestLibraryThatIsMissingIsNamed(t *testing.T) {
	root := systemRoot(t)
	libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libc.so.6"))
	if err != nil || len(libraries) != 1 {
		t.Fatal(libraries, err)
	}
	if err := os.Remove(libraries[0]); err != nil {
		t.Fatal(err)
	}
	set, err := Find(driver.Here(root))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(set.Problems, func(p string) bool { return strings.Contains(p, "nvidia-imex needs libc.so.6") }) {
		t.Errorf("problems %q", set.Problems)
	}
	if !slices.ContainsFunc(set.Problems, func(p string) bool { return strings.Contains(p, "libcuda.so") }) {
		t.Errorf("problems %q do not name libcuda, which this driver has not", set.Problems)
	}
}

func TestProgramWithoutALoaderNeedsNone(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "usr/bin/nvidia-imex"), "#!/bin/sh\n")
	write(t, filepath.Join(root, "usr/bin/nvidia-imex-ctl"), "#!/bin/sh\n")
	write(t, filepath.Join(root, "usr/lib64/libnvidia-imex.so.1"), "")
	set, err := Find(driver.Here(root))
	if err != nil || set.Loader != "" || len(set.Files) != 3 {
		t.Errorf("%+v, %v", set, err)
	}
}

func TestFilesNameAMissingIMEXAndLoader(t *testing.T) {
	if _, err := Find(driver.Here(t.TempDir())); !errors.Is(err, ErrNoIMEX) ||
		!strings.Contains(err.Error(), "install the package nvidia-imex") {
		t.Errorf("an empty root: %v", err)
	}
	root := t.TempDir()
	compile(t, program, filepath.Join(root, "usr/bin/nvidia-imex"))
	if _, err := Find(driver.Here(root)); err == nil || !strings.Contains(err.Error(), "ld-linux") || !strings.Contains(err.Error(), root) {
		t.Errorf("a root without a loader: %v", err)
	}
}

// The program is one of NVIDIA's. Like nvidia-imex it is built for old C libraries, and it starts without a GPU. The C
// libraries are those of Debian 11 and 13. This machine and our image have other versions.
func TestProgramRunsWithTheNodesCLibrary(t *testing.T) {
	for _, c := range []struct {
		libc   string
		merged bool
	}{{"libc6_2.31", false}, {"libc6_2.41", true}} {
		t.Run(c.libc, func(t *testing.T) {
			root := gputest.DriverRoot(t, c.merged, gputest.NVIDIAProgram(t, c.libc))
			source, err := os.ReadFile(filepath.Join(gputest.NVIDIAProgram(t, "nvidia-smi_550"), "usr/lib/nvidia/current/nvidia-smi"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"nvidia-imex", "nvidia-imex-ctl"} {
				write(t, filepath.Join(root, "usr/bin", name), string(source))
			}
			set, err := Find(driver.Place{Path: root, Host: "/run/nvidia/driver"})
			if err != nil {
				t.Fatal(err)
			}
			dir := container(t, root, set)
			libraries := filepath.Join(dir, filepath.Dir(set.Loader))
			start := func(loader string) (string, error) {
				run := exec.CommandContext(t.Context(), loader, "--inhibit-cache", "--library-path", libraries, filepath.Join(dir, set.Daemon), "-h")
				run.Env = []string{}
				out, err := run.CombinedOutput()
				return string(out), err
			}
			if out, err := start(filepath.Join(dir, set.Loader)); err != nil || !strings.Contains(out, "NVIDIA System Management Interface") {
				t.Errorf("under its node's loader: %v\n%s", err, out)
			}
			// The loader of this machine must not work: if it starts the program, the C libraries are too similar for this
			// test.
			if out, err := start(loaderOfThisMachine()); err == nil || strings.Contains(out, "System Management") {
				t.Errorf("this machine's loader takes the C library of %s too", c.libc)
			}
		})
	}
}
