// Package seccomptest tries the calls of an attacker who controls a program.
package seccomptest

import (
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Word is the argument that makes a test program run Attempts.
const Word = "attempt-system-calls"

// Refused is the output of Attempts behind a filter that allows nothing beyond the defaults.
const Refused = "unshare=EPERM\nsetns=EPERM\nmount=EPERM\nclone=EPERM\nclone of mounts=EPERM\nclone3=ENOSYS\nio_uring_setup=EPERM\n" +
	"keyctl=EPERM\nptrace=EPERM\na call of a later kernel=ENOSYS\na socket of the ciphers=EAFNOSUPPORT\n" +
	"a socket of packets=EAFNOSUPPORT\na Unix socket=\na TCP socket="

// Attempts writes the kernel's answer to each attempt, one per line. Where nothing refuses them, the attempts make sockets and
// change nothing else: the other arguments are invalid.
func Attempts(out io.Writer) {
	call := func(name string, number uintptr, arguments ...uintptr) {
		var a [5]uintptr
		copy(a[:], arguments)
		_, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], 0)
		_, _ = fmt.Fprintf(out, "%s=%s\n", name, unix.ErrnoName(errno))
	}
	var ring [120]byte
	none := ^uintptr(0) // an invalid descriptor and address
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
