// Package seccomptest tries what an attacker would who has taken a program over.
package seccomptest

import (
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Word is the argument with which a test program is to run Attempts.
const Word = "attempt-system-calls"

// Refused is what Attempts writes of a program behind a filter that lets nothing more through.
const Refused = "unshare=EPERM\nsetns=EPERM\nmount=EPERM\nclone=EPERM\nclone of mounts=EPERM\nclone3=ENOSYS\nio_uring_setup=EPERM\n" +
	"keyctl=EPERM\nptrace=EPERM\na call of a later kernel=ENOSYS\na socket of the ciphers=EAFNOSUPPORT\n" +
	"a socket of packets=EAFNOSUPPORT\na Unix socket=\na TCP socket="

// Attempts writes what the kernel answers to each attempt, a line each. Where nothing refuses them, they make sockets and nothing else: the
// other arguments are wrong.
func Attempts(out io.Writer) {
	call := func(name string, number uintptr, arguments ...uintptr) {
		var a [5]uintptr
		copy(a[:], arguments)
		_, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], 0)
		_, _ = fmt.Fprintf(out, "%s=%s\n", name, unix.ErrnoName(errno))
	}
	var ring [120]byte
	none := ^uintptr(0) // no descriptor, and no address
	call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	call("setns", unix.SYS_SETNS, none)
	call("mount", unix.SYS_MOUNT, none, none, none)
	call("clone", unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_THREAD)
	call("clone of mounts", unix.SYS_CLONE, unix.CLONE_NEWNS|unix.CLONE_THREAD)
	call("clone3", unix.SYS_CLONE3)
	call("io_uring_setup", unix.SYS_IO_URING_SETUP, 0, uintptr(unsafe.Pointer(&ring))) //nolint:gosec // as the kernel takes it
	call("keyctl", unix.SYS_KEYCTL, none)
	call("ptrace", unix.SYS_PTRACE, none)
	call("a call of a later kernel", unix.SYS_REMOVEXATTRAT+1)
	call("a socket of the ciphers", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET)
	call("a socket of packets", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)
	call("a Unix socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM)
	call("a TCP socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM)
}
