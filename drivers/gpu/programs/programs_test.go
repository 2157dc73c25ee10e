package programs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/hardware/driver"
)

// runner runs the programs of a driver root with the device nodes of dev.
func runner(root, dev string) Runner {
	return Runner{Driver: func() driver.Location { return driver.Location{Root: driver.Here(root), Dev: driver.Here(dev)} },
		Enter: Reexec("driver-program")}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
}

// run runs a program and returns its output.
func run(t *testing.T, r Runner, s Share, name string, args ...string) (string, error) {
	t.Helper()
	if s.Mountpoint == "" {
		s.Mountpoint = filepath.Join(t.TempDir(), "root")
	}
	cmd, err := r.Command(t.Context(), s, name, args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// The C libraries are those of Debian 11 and 13. This machine's and our image's are different ones.
func TestRealControlDaemonStartsWithTheRootsCLibrary(t *testing.T) {
	gputest.NeedsMounts(t)
	for _, c := range []struct {
		libc   string
		merged bool
	}{{"libc6_2.31", false}, {"libc6_2.41", true}} {
		t.Run(c.libc, func(t *testing.T) {
			root := gputest.DriverRoot(t, c.merged, gputest.NVIDIAProgram(t, c.libc), gputest.NVIDIAProgram(t, "nvidia-cuda-mps_550"))
			out, err := run(t, runner(root, t.TempDir()), Share{Apart: true}, "nvidia-cuda-mps-control", "-h")
			if !strings.Contains(out, "CUDA MPS Control for Linux") {
				t.Errorf("it says %q (%v)", out, err)
			}
			// The former way: this container's loader with the driver root's C library.
			mixed := exec.CommandContext(t.Context(), filepath.Join(root, "usr/bin/nvidia-cuda-mps-control"), "-h")
			mixed.Env = environment(root, true)
			if out, err := mixed.CombinedOutput(); err == nil || strings.Contains(string(out), "CUDA MPS Control") {
				t.Errorf("this machine's loader takes the C library of %s, so nothing was shown: %s", c.libc, out)
			}
		})
	}
}

// compiled is a driver root with a program whose loader is at a path that nothing else has, and with this machine's C library under
// another name than here.
func compiled(t *testing.T) string {
	t.Helper()
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not on the PATH: nothing to compile a program with")
	}
	root := t.TempDir()
	source := filepath.Join(root, "p.c")
	write(t, source, "#include <stdio.h>\nint main(void) { return puts(\"hello\") < 0; }\n")
	program := filepath.Join(root, "usr/bin/nvidia-smi")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), compiler, "-Wl,--dynamic-linker=/private/loader.so", "-o", program,
		source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}

// library copies this machine's C library and loader into a root.
func library(t *testing.T, root, loader string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ldd", "/bin/true").Output()
	if err != nil {
		t.Skipf("ldd /bin/true: %v", err)
	}
	for _, word := range strings.Fields(string(out)) {
		target := ""
		switch base := filepath.Base(word); {
		case !filepath.IsAbs(word):
			continue
		case strings.HasPrefix(base, "ld-linux"):
			target = loader
		default:
			target = filepath.Join("usr/lib64", base)
		}
		data, err := os.ReadFile(word)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, target), string(data))
	}
}

func TestProgramRunsWithTheLoaderOfItsDriverRoot(t *testing.T) {
	gputest.NeedsMounts(t)
	root := compiled(t)
	library(t, root, "opt/private/loader.so")
	_, err := run(t, runner(root, t.TempDir()), Share{}, "nvidia-smi")
	if err == nil || !strings.Contains(err.Error(), "/private/loader.so, which is not below the driver root") ||
		!strings.Contains(err.Error(), "/lib64") {
		t.Errorf("without the loader: %v", err)
	}
	// A host of which only /usr is available.
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/private"), 0o755),
		os.Rename(filepath.Join(root, "opt/private/loader.so"), filepath.Join(root, "usr/private/loader.so"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/private", filepath.Join(root, "private")); err != nil {
		t.Fatal(err)
	}
	if _, err := interpreter(filepath.Join(root, "usr/bin/nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	if alone, err := bare(driver.Here(root), filepath.Join(root, "usr/bin/nvidia-smi")); alone || err != nil {
		t.Errorf("its own loader is not taken: %v", err)
	}
}

func TestProgramUsesTheContainersCLibrary(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "usr/bin/nvidia-smi"), "#!/bin/sh\necho $LD_LIBRARY_PATH\n")
	out, err := run(t, runner(root, t.TempDir()), Share{}, "nvidia-smi")
	if err != nil || !strings.Contains(out, filepath.Join(root, "usr/lib64")) {
		t.Errorf("it says %q, %v", out, err)
	}
	write(t, filepath.Join(root, "usr/bin/nvidia-smi"), "#!/no/shell\n")
	if _, err := run(t, runner(root, t.TempDir()), Share{}, "nvidia-smi"); err == nil ||
		!strings.Contains(err.Error(), "/no/shell, which is neither below the driver root") {
		t.Errorf("error %v", err)
	}
}

func TestProgramThatIsMissingIsNamed(t *testing.T) {
	_, err := run(t, runner(t.TempDir(), t.TempDir()), Share{}, "nvidia-smi")
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "hardware.driverRoot") {
		t.Errorf("error %v", err)
	}
}

// enclosed is a driver root without a C library, a /dev with the nodes of two GPUs, and its program's view inside its enclosure.
func enclosed(t *testing.T, s Share, script string) string {
	t.Helper()
	return enclosedWith(t, "", s, script)
}

// enclosedWith is enclosed on a machine with a table of devices.
func enclosedWith(t *testing.T, procDevices string, s Share, script string) string {
	t.Helper()
	gputest.NeedsMounts(t)
	root, dev := t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "usr/bin/nvidia-cuda-mps-control"), "#!/bin/sh\n"+script)
	for _, node := range []string{"nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "sda"} {
		write(t, filepath.Join(dev, node), "")
	}
	s.Apart = true
	r := runner(root, dev)
	if procDevices != "" {
		table := filepath.Join(t.TempDir(), "devices")
		write(t, table, procDevices)
		at := r.Driver()
		at.ProcDevices = table
		r.Driver = func() driver.Location { return at }
	}
	out, err := run(t, r, s, "nvidia-cuda-mps-control")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}

// The kernel makes no file for the nodes of MIG devices, nor for nvidia-uvm: a process with a writable /dev has to (nvidia-modprobe). The
// numbers here are those of this machine's /dev/zero, so that the test can open the nodes.
func TestProgramMakesADeviceNodeByItsNumber(t *testing.T) {
	share := Share{Nodes: []string{"nvidiactl", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap5"}}
	out := enclosedWith(t, "Character devices:\n  1 nvidia-caps\n510 nvidia-uvm\n", share,
		"cd /dev; stat -c '%n %F %t:%T %a' nvidia-uvm-tools nvidia-caps/nvidia-cap5; head -c 2 nvidia-caps/nvidia-cap5 | od -An -tx1; ls "+
			"nvidiactl")
	if want := "nvidia-uvm-tools character special file 1fe:1 666\n" +
		"nvidia-caps/nvidia-cap5 character special file 1:5 666\n 00 00\nnvidiactl"; out != want {
		t.Errorf("it has\n%s\nwant\n%s", out, want)
	}
}

func TestProgramNamesAnUnknownDeviceNode(t *testing.T) {
	gputest.NeedsMounts(t)
	root := t.TempDir()
	write(t, filepath.Join(root, "usr/bin/nvidia-cuda-mps-control"), "#!/bin/sh\n")
	out, err := run(t, runner(root, t.TempDir()), Share{Apart: true, Nodes: []string{"nvidia-uvm"}}, "nvidia-cuda-mps-control")
	if err == nil || !strings.Contains(out, "device node nvidia-uvm") || !strings.Contains(out, "no number for it") {
		t.Errorf("it says %q, %v", out, err)
	}
}

// An attacker who writes to a shared directory may put a link to /proc/PID/root there, which leads to the files of another
// container.
func TestProgramDoesNotSeeOtherProcesses(t *testing.T) {
	out := strings.Fields(enclosed(t, Share{Unprivileged: true}, "cd /proc; echo $$; ls -d [0-9]*"))
	if len(out) == 0 || out[0] != "1" {
		t.Fatalf("it is process %v", out)
	}
	for _, pid := range out[1:] {
		if n, err := strconv.Atoi(pid); err != nil || n > 9 {
			t.Errorf("it sees process %s", pid)
		}
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(os.Getpid())); err != nil {
		t.Errorf("this machine's /proc is another: %v", err)
	}
}

// The MPS server names its threads, and ends where it cannot (driver 580.159.04, on an H100). The rest of /proc is the node's.
func TestProgramWritesOnlyToItsOwnProcessesInProc(t *testing.T) {
	script := `echo named > /proc/self/task/1/comm; cat /proc/1/comm
for f in $(find /proc -maxdepth 1 -type f) /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname; do
	if [ -w $f ] || (: >> $f) 2>/dev/null; then echo $f can be written; fi
done
umount /proc/sys 2>/dev/null && echo /proc/sys was unmounted; true`
	if out := enclosed(t, Share{Unprivileged: true}, script); out != "named" {
		t.Errorf("it has\n%s\nwant a name of its own, and nothing else written", out)
	}
}

func TestProgramDoesNotFollowOthersLinks(t *testing.T) {
	shared, shm := t.TempDir(), t.TempDir()
	write(t, filepath.Join(shared, "target"), "kept")
	for _, link := range []string{filepath.Join(shared, "link"), filepath.Join(shm, "link")} {
		if err := os.Symlink(filepath.Join(shared, "target"), link); err != nil {
			t.Fatal(err)
		}
	}
	out := enclosed(t, Share{Unprivileged: true, Directories: []string{shared}, Shm: shm},
		"for d in "+shared+" /dev/shm; do echo x 2>/dev/null > $d/link && echo wrote through $d/link; done; echo y > "+shared+"/own; true")
	if out != "" && strings.Contains(out, "wrote") {
		t.Errorf("it %s", out)
	}
	for name, want := range map[string]string{"target": "kept", "own": "y\n"} {
		if text, err := os.ReadFile(filepath.Join(shared, name)); err != nil || string(text) != want {
			t.Errorf("%s holds %q, %v", name, text, err)
		}
	}
}

func TestProgramRootHasOnlyTheGivenNodes(t *testing.T) {
	shm, pipe := t.TempDir(), t.TempDir()
	write(t, filepath.Join(shm, "mark"), "")
	share := Share{Nodes: []string{"nvidiactl", "nvidia0"}, Directories: []string{pipe}, Shm: shm, Unprivileged: true}
	script := "ls -1 /dev /dev/shm; echo then; ls /; echo then; touch " + pipe +
		"/made; for f in /usr/x /x /etc/x /dev/x /proc/sys/x; do touch $f 2>/dev/null && echo wrote $f; done; true"
	parts := strings.Split(enclosed(t, share, script)+"\n", "then\n")
	dev := strings.Fields(parts[0])
	want := []string{"/dev:", "full", "null", "nvidia0", "nvidiactl", "random", "shm", "urandom", "zero", "/dev/shm:", "mark"}
	if !slices.Equal(dev, want) {
		t.Errorf("/dev has %v, want %v", dev, want)
	}
	for name := range strings.FieldsSeq(parts[1]) {
		if slices.Contains([]string{"root", "home", "var", "run", "boot", "mnt", "srv", "work"}, name) {
			t.Errorf("/%s of the machine is to be seen", name)
		}
	}
	if parts[2] != "" {
		t.Errorf("it %s", parts[2])
	}
	if _, err := os.Stat(filepath.Join(pipe, "made")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/dev/shm/mark"); err == nil {
		t.Error("everybody sees its /dev/shm")
	}
}

func TestProgramGetsAllNodesByDefault(t *testing.T) {
	out := strings.Fields(enclosed(t, Share{}, "cd /dev; ls -d nvidia* nvidia-caps/*"))
	if want := []string{"nvidia-caps", "nvidia-caps/nvidia-cap1", "nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"}; !slices.Equal(out, want) {
		t.Errorf("it has %v, want %v", out, want)
	}
}

func TestProgramDropsItsRights(t *testing.T) {
	out := enclosed(t, Share{Unprivileged: true}, "cat /proc/self/status")
	status := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	var want uint64
	for _, capability := range kept() {
		want |= 1 << capability
	}
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		got, err := strconv.ParseUint(status[set], 16, 64)
		if err != nil || got&^want != 0 {
			t.Errorf("%s is %s (error: %v), want nothing beyond %016x", set, status[set], err, want)
		}
	}
	if status["NoNewPrivs"] != "1" {
		t.Errorf("NoNewPrivs is %q", status["NoNewPrivs"])
	}
}
