package edits

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/gputest"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
}

func TestHookIsInstalledCompletely(t *testing.T) {
	own, directory := filepath.Join(t.TempDir(), "nvidia-cdi-hook"), filepath.Join(t.TempDir(), "bin")
	h := Hook{Own: own, Directory: directory}
	if path, err := h.Install(); path != "" || err != nil {
		t.Errorf("without a hook in the image: %q, %v", path, err)
	}
	for _, version := range []string{"version 1", "version 2", "version 2"} {
		put(t, own, version)
		path, err := h.Install()
		if err != nil || path != filepath.Join(directory, "nvidia-cdi-hook") {
			t.Fatalf("%q, %v", path, err)
		}
		text, err := os.ReadFile(path)
		info, serr := os.Stat(path)
		if err := errors.Join(err, serr); err != nil || string(text) != version || info.Mode().Perm() != 0o755 {
			t.Errorf("the host has %q with mode %v, %v", text, info.Mode(), err)
		}
	}
	for wish, want := range map[string]string{NoHook: "", "/opt/nvidia-cdi-hook": "/opt/nvidia-cdi-hook"} {
		h.Wish = wish
		if path, err := h.Install(); path != want || err != nil {
			t.Errorf("%s: %q, %v", wish, path, err)
		}
	}
}

func TestHookNamesLdconfigByTheHostsPath(t *testing.T) {
	host, bare := t.TempDir(), t.TempDir()
	put(t, filepath.Join(host, "usr/sbin/ldconfig"), "")
	if err := os.Symlink("usr/sbin", filepath.Join(host, "sbin")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		root, onHost, want string
		wrong              bool
	}{
		{root: host, onHost: "/", want: "/sbin/ldconfig"},
		{root: host, onHost: "/run/nvidia/driver", want: "/run/nvidia/driver/sbin/ldconfig"},
		{root: bare, onHost: "/home/kubernetes/bin/nvidia"}, // the host's own, which is not seen from here
		{root: bare, onHost: "/", wrong: true},
	} {
		got, err := Options{DriverRoot: c.root, HostDriverRoot: c.onHost}.ldconfig()
		if got != c.want || (err != nil) != c.wrong {
			t.Errorf("%s: %q, %v; want %q", c.onHost, got, err, c.want)
		}
	}
}

// loads is a program that opens libcuda.so.1 as CUDA programs do.
const loads = `#include <dlfcn.h>
#include <stdio.h>
int main(void) {
	void *found = dlopen("libcuda.so.1", RTLD_NOW);
	puts(found ? "found" : dlerror());
	return found == NULL;
}
`

// The driver's files are mounted at their paths on the host, which the container's loader may not search.
func TestHookMakesLibcudaFindable(t *testing.T) {
	gputest.NeedsMounts(t)
	hook, err := filepath.Abs("../../../bin/nvidia-cdi-hook")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(hook); err != nil {
		t.Skipf("%v: `make build` builds it", err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not on the PATH: nothing to compile a program with")
	}
	bundle := t.TempDir()
	container := gputest.DriverRoot(t, true, gputest.NVIDIAProgram(t, "libc6_2.41"))
	put(t, filepath.Join(bundle, "p.c"), loads)
	put(t, filepath.Join(bundle, "cuda.c"), "int cuInit(unsigned f) { return 0; }\n")
	driver := filepath.Join(container, "opt/driver/lib")
	if err := os.MkdirAll(driver, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-o", filepath.Join(container, "usr/program"), filepath.Join(bundle, "p.c")},
		{"-shared", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(driver, "libcuda.so.570.158.01"), filepath.Join(bundle, "cuda.c")},
	} {
		if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	program := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), "chroot", container, "/usr/program").CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, err := program(); err == nil {
		t.Fatalf("libcuda.so.1 is found without the hook (%s), so nothing is shown", out)
	}
	spec, err := json.Marshal(map[string]any{"ociVersion": "1.2.0", "root": map[string]string{"path": container}})
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(bundle, "config.json"), string(spec))
	// This is how the container runtime runs a createContainer hook: in the container's mount namespace, with its root as a mount, and
	// with its state on the standard input.
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", `mount --bind "$1" "$1" && shift && exec "$@"`, "sh", container,
		hook, "update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder", "/opt/driver/lib")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"ociVersion":"1.2.0","id":"c1","status":"creating","pid":%d,"bundle":%q}`, os.Getpid(),
		bundle))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the hook: %v: %s", err, out)
	}
	if out, err := program(); err != nil {
		t.Errorf("after the hook: %s", out)
	}
}
