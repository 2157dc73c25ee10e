package programs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/gpu/gputest"
)

// attempts is what an attacker who has taken a daemon over tries of the kernel. None takes a capability, so nothing but the filter refuses
// them.
func attempts(out io.Writer) {
	call := func(name string, number uintptr, arguments ...uintptr) {
		var a [3]uintptr
		copy(a[:], arguments)
		_, _, errno := unix.RawSyscall(number, a[0], a[1], a[2])
		_, _ = fmt.Fprintf(out, "%s=%s\n", name, unix.ErrnoName(errno))
	}
	var ring [120]byte
	call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	call("clone", unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_THREAD) // EINVAL where nothing refuses it
	call("clone3", unix.SYS_CLONE3)
	call("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&ring)))
	call("keyctl", unix.SYS_KEYCTL, 0, ^uintptr(2), 0) // KEYCTL_GET_KEYRING_ID of the session's
	call("ptrace", unix.SYS_PTRACE, unix.PTRACE_TRACEME)
	call("a call of a later kernel", newest+1)
	call("a socket of the ciphers", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET)
	call("a socket of packets", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)
	call("a Unix socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM)
	call("a TCP socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM)
}

// imposter is a driver root whose control daemon is this test program.
func imposter(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	program := filepath.Join(root, "usr/bin/nvidia-cuda-mps-control")
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(program), 0o755), os.WriteFile(program, content, 0o755)); err != nil { //nolint:gosec // run
		t.Fatal(err)
	}
	return root
}

//shows:tenants gpu-mps
//attack:mps-system-calls A tenant who controls an MPS daemon makes a user namespace, or reaches for io_uring, keys and ciphers
func TestAnUnprivilegedProgramReachesLittleOfTheKernel(t *testing.T) {
	gputest.NeedsMounts(t)
	out, err := run(t, runner(imposter(t), t.TempDir()), Share{Apart: true, Unprivileged: true}, "nvidia-cuda-mps-control", "attempts")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("attacker sees: %s", strings.ReplaceAll(out, "\n", ", "))
	want := "unshare=EPERM\nclone=EPERM\nclone3=ENOSYS\nio_uring_setup=EPERM\nkeyctl=EPERM\nptrace=EPERM\na call of a later kernel=ENOSYS\n" +
		"a socket of the ciphers=EAFNOSUPPORT\na socket of packets=EAFNOSUPPORT\na Unix socket=\na TCP socket="
	if out != want {
		t.Errorf("the kernel answers\n%s\nwant\n%s", out, want)
	}
}
