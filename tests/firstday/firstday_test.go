package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpufabric.io/build/repository"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// programVariable makes the test binary the program: NVML can be loaded once a process, and CUDA clients are processes of the program.
const programVariable = "FIRSTDAY_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// fake renders a machine; its libraries are those that `make fakes` built.
func fake(t *testing.T, name string) (root string, p *profile.Profile) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: device nodes are looked at, and only root can make them")
	}
	checkout, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	p, err = profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root, err = os.MkdirTemp("/tmp", "day-") // short, for the sake of Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	build := filepath.Join(checkout, "fakes/build")
	err = tree.Render(t.Context(), tree.Options{Profile: p, Root: root, LibraryDir: filepath.Join(build, "lib"),
		Tools: filepath.Join(build, "fakefabric")})
	if err != nil {
		t.Fatalf("%v (`make fakes` builds the libraries)", err)
	}
	return root, p
}

// program is the first day on a fake.
func program(ctx context.Context, t *testing.T, root string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-driver-root", filepath.Join(root, "driver"), "-dev", filepath.Join(root, "dev"), "-proc",
		filepath.Join(root, "proc"),
		"-sys", filepath.Join(root, "sys"), "-stand-in", filepath.Join(checkout, "fakes/build/lib/libcuda.so.1")}, args...)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// day runs it to its end and gives each step's line.
func day(t *testing.T, root string, change func(*exec.Cmd)) (lines map[string]string, status int, all string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := program(ctx, t, root)
	if change != nil {
		change(cmd)
	}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if complaint.Len() > 0 {
		t.Errorf("on standard error: %s", complaint.String())
	}
	lines = map[string]string{}
	line := regexp.MustCompile(`(?m)^(ok|failed|not permitted|not here) +(` + strings.Join(names(), "|") + `) +(.*)$`)
	for _, m := range line.FindAllStringSubmatch(out.String(), -1) {
		lines[m[2]] = m[1] + ": " + m[3]
	}
	for _, name := range names() {
		if lines[name] == "" {
			t.Errorf("no line about step %s", name)
		}
	}
	if t.Failed() {
		t.Fatal(out.String())
	}
	return lines, cmd.ProcessState.ExitCode(), out.String()
}

func names() []string {
	var all []string
	for _, s := range steps() {
		all = append(all, s.name)
	}
	return all
}

// standing is everything about a fake that a step could change: nvidia-smi's words and the names of files.
func standing(t *testing.T, root string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "driver/usr/bin/nvidia-smi"), "-q", "-x")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(root, "driver/usr/lib64"), "FAKEFABRIC_ROOT="+root)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`<timestamp>.*</timestamp>`).ReplaceAllString(string(out), "")
	policies := exec.CommandContext(t.Context(), filepath.Join(root, "driver/usr/bin/nvidia-smi"), "compute-policy", "-l")
	policies.Env = cmd.Env
	out, err = policies.Output()
	if err != nil {
		t.Fatal(err)
	}
	text += string(out)
	for _, dir := range []string{"dev", "proc"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			text += path + "\n"
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return text
}

func TestFirstDayKeepsEveryFakeUnchanged(t *testing.T) {
	for _, name := range profile.Names() {
		p, err := profile.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.GPUs == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			root, _ := fake(t, name)
			before := standing(t, root)
			lines, status, all := day(t, root, nil)
			for step, line := range lines {
				if !strings.HasPrefix(line, "ok: ") && !strings.HasPrefix(line, "not here: ") {
					t.Errorf("%s: %s", step, line)
				}
			}
			if status != 0 {
				t.Errorf("exit status %d:\n%s", status, all)
			}
			if after := standing(t, root); after != before {
				t.Errorf("something was not put back:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func TestFirstDayExplainsEachFailure(t *testing.T) {
	lacks := func(paths ...string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			for _, pattern := range paths {
				found, err := filepath.Glob(filepath.Join(root, pattern))
				if err != nil || len(found) == 0 {
					t.Fatalf("nothing is %s: %v", pattern, err)
				}
				for _, path := range found {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	for _, c := range []struct {
		name, step, want string
		status           int
		spoil            func(*testing.T, string)
	}{
		{"without a driver", "driver", "failed: no libnvidia-ml.so.1 below ", 1, lacks("driver/usr/lib64/libnvidia-ml.so*")},
		{"without a driver NVML", "inventory", "failed: NVML does not start: ", 1, lacks("driver/usr/lib64/libnvidia-ml.so*")},
		{"without a loaded driver", "driver", "failed: .*the kernel has no driver loaded: ", 1, lacks("proc/driver/nvidia/version")},
		{"with a driver of two versions", "driver", "failed: the library .* is of another version than the kernel's driver: ", 1,
			func(t *testing.T, root string) {
				text := "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.1.2  Release Build\n"
				path := filepath.Join(root, "proc/driver/nvidia/version")
				if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}},
		{"without nvidia-smi", "profile", "failed: no nvidia-smi in the driver's root ", 1, lacks("driver/usr/bin/nvidia-smi")},
		{"without nvidia-smi time slices", "time slice", "failed: no nvidia-smi in the driver's root ", 1, lacks("driver/usr/bin/nvidia-smi")},
		{"without MPS", "mps", "not here: no nvidia-cuda-mps-control in the driver's root ", 0, lacks("driver/usr/bin/nvidia-cuda-mps-control")},
		{"without CUDA", "cuda", "failed: the driver's CUDA: .*libcuda.so.1: no such file", 1, lacks("driver/usr/lib64/libcuda.so*")},
		{"without a GPU's node", "cdi", "failed: ", 1, lacks("dev/nvidia3")},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, _ := fake(t, "h100-hgx")
			c.spoil(t, root)
			lines, status, all := day(t, root, nil)
			if !regexp.MustCompile("^" + c.want).MatchString(lines[c.step]) {
				t.Errorf("%s: %q; want %s\n%s", c.step, lines[c.step], c.want, all)
			}
			if status != c.status {
				t.Errorf("exit status %d; want %d:\n%s", status, c.status, all)
			}
		})
	}
}

func TestFirstDayReportsMissingPermissions(t *testing.T) {
	root, _ := fake(t, "h100-hgx")
	before := standing(t, root)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test binary lies where other users may not look.
	program := filepath.Join(root, "firstday")
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	lines, _, all := day(t, root, func(cmd *exec.Cmd) {
		cmd.Path = program
		cmd.Dir = root
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	})
	for _, step := range []string{"time slice", "mig"} {
		if !strings.HasPrefix(lines[step], "not permitted: ") {
			t.Errorf("%s: %s\n%s", step, lines[step], all)
		}
	}
	if after := standing(t, root); after != before {
		t.Errorf("something was changed:\n%s", all)
	}
}

func TestReadOnlyLeavesOutStepsThatChangeAGPU(t *testing.T) {
	root, _ := fake(t, "h100-hgx")
	lines, status, all := day(t, root, func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-read-only") })
	for _, step := range []string{"time slice", "mig"} {
		if !strings.HasPrefix(lines[step], "not here: left out by -read-only") {
			t.Errorf("%s: %s\n%s", step, lines[step], all)
		}
	}
	if status != 0 {
		t.Errorf("exit status %d:\n%s", status, all)
	}
}

func TestCDIDoesNotNeedADeviceNodeThatTheRuntimeMakes(t *testing.T) {
	root, _ := fake(t, "h100-hgx")
	if err := os.Remove(filepath.Join(root, "dev/nvidia-modeset")); err != nil {
		t.Fatal(err)
	}
	if lines, _, all := day(t, root, nil); !strings.HasPrefix(lines["cdi"], "ok: ") {
		t.Errorf("cdi: %s\n%s", lines["cdi"], all)
	}
}

func TestFirstDayRestoresWhenInterrupted(t *testing.T) {
	root, _ := fake(t, "h100-hgx")
	before := standing(t, root)
	cmd := program(t.Context(), t, root)
	said, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = tell
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = tell.Close() // the program has its own
	var out strings.Builder
	buffer := make([]byte, 4096)
	for !strings.Contains(out.String(), " cuda ") { // the next step changes something
		n, err := said.Read(buffer)
		if err != nil {
			t.Fatalf("it ended before: %v\n%s", err, out.String())
		}
		out.Write(buffer[:n])
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := said.Read(buffer)
		out.Write(buffer[:n])
		if err != nil {
			break
		}
	}
	_ = cmd.Wait() // its status is not the point
	if !regexp.MustCompile(`\d+ ok, \d+ failed`).MatchString(out.String()) {
		t.Errorf("no sum at the end:\n%s", out.String())
	}
	if after := standing(t, root); after != before {
		t.Errorf("something was not put back:\n%s", fmt.Sprint(out.String()))
	}
}

func TestFirstDayReadsNVIDIAsNvidiaSMI(t *testing.T) {
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	directory := cmp.Or(os.Getenv("GPUFABRIC_NVIDIA_PROGRAMS"), filepath.Join(cache, "gpufabric/nvidia"))
	found, err := filepath.Glob(filepath.Join(directory, "nvidia-smi_*/usr/lib/nvidia/current/nvidia-smi"))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skipf("skipped: no nvidia-smi of NVIDIA's in %s (make nvidia-programs fetches it from a Debian mirror)", directory)
	}
	for _, program := range found {
		t.Run(filepath.Base(strings.TrimSuffix(program, "/usr/lib/nvidia/current/nvidia-smi")), func(t *testing.T) {
			root, _ := fake(t, "a100-40")
			data, err := os.ReadFile(program)
			if err != nil {
				t.Fatal(err)
			}
			inRoot := filepath.Join(root, "driver/usr/bin/nvidia-smi")
			if err := errors.Join(os.Remove(inRoot), os.WriteFile(inRoot, data, 0o755)); err != nil {
				t.Fatal(err)
			}
			lines, status, all := day(t, root, nil)
			for _, step := range []string{"profile", "time slice"} {
				if !strings.HasPrefix(lines[step], "ok: ") {
					t.Errorf("%s: %s", step, lines[step])
				}
			}
			if status != 0 {
				t.Errorf("exit status %d:\n%s", status, all)
			}
		})
	}
}
