// Package seccomp refuses system calls that change the machine or reach deep into the kernel, either to a program that is about to
// be started or to this process. A privileged container has no seccomp profile from the container runtime.
//
// The lists name the refused calls, not the allowed ones: the programs behind the filter are not ours but the NVIDIA driver's.
package seccomp

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rules are the system calls that a filter allows beyond the defaults.
type Rules struct {
	// Mounts allows to mount file systems, and to start processes with mounts and process IDs of their own.
	Mounts bool
	// Join allows threads to join existing namespaces.
	Join bool
}

// The offsets of a filter's input (struct seccomp_data in linux/seccomp.h).
const (
	numberAt       = 0
	architectureAt = 4
	argumentAt     = 16 // the lower half of the first argument, on little-endian machines
)

// newest is the last system call that was considered for these lists. A later one is answered as by a kernel that does not have it
// yet.
const newest = unix.SYS_REMOVEXATTRAT

// newNamespaces are the flags of clone that make namespaces. In a user namespace of its own a process has every capability again.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

// mounts are the calls of Rules.Mounts.
func mounts() []uint32 {
	return []uint32{unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOUNT_SETATTR}
}

// refused are the calls that a filter refuses: those of the container runtimes' default profile for containers without capabilities
// (seccomp/default.go in github.com/moby/profiles), and ptrace, which that profile allows.
func (r Rules) refused() []uint32 {
	out := append(refusedHere(),
		// namespaces, mounts and roots
		unix.SYS_UNSHARE, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
		unix.SYS_FSPICK, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
		// the kernel itself
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL,
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		// the machine
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_SYSLOG, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
		unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME,
		unix.SYS_VHANGUP,
		// other processes
		unix.SYS_PTRACE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	)
	if !r.Mounts {
		out = append(out, mounts()...)
	}
	if !r.Join {
		out = append(out, unix.SYS_SETNS)
	}
	return out
}

// flags are the flags of clone that a filter refuses.
func (r Rules) flags() uint32 {
	if r.Mounts {
		return newNamespaces &^ (unix.CLONE_NEWNS | unix.CLONE_NEWPID)
	}
	return newNamespaces
}

// families are the address families of sockets that may be made. The others belong to the kernel's less used networks and to its
// ciphers.
func families() []uint32 { return []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} }

// program returns the filter that the kernel runs before each system call. All but two of its tests jump over one instruction, so that the
// lists may have any length.
func (r Rules) program() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	answer := func(errno unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	// unless jumps over so many instructions where the test fails. when jumps over one where it does not fail.
	unless := func(test uint16, value uint32, over uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: value, Jf: over}
	}
	when := func(test uint16, value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: value, Jt: 1}
	}
	out := []unix.SockFilter{
		// System call numbers of another architecture, such as of 32-bit programs, mean other calls.
		load(architectureAt), when(unix.BPF_JEQ, architecture), answer(unix.ENOSYS),
		load(numberAt),
		// The C library falls back to clone, whose flags a filter can read. Those of clone3 are behind a pointer.
		unless(unix.BPF_JEQ, unix.SYS_CLONE3, 1), answer(unix.ENOSYS),
		unless(unix.BPF_JGT, newest, 1), answer(unix.ENOSYS),
	}
	for _, number := range r.refused() {
		out = append(out, unless(unix.BPF_JEQ, number, 1), answer(unix.EPERM))
	}
	clone := []unix.SockFilter{load(argumentAt), unless(unix.BPF_JSET, r.flags(), 1), answer(unix.EPERM), allow}
	sockets := []unix.SockFilter{load(argumentAt)}
	for _, family := range families() {
		sockets = append(sockets, unless(unix.BPF_JEQ, family, 1), allow)
	}
	sockets = append(sockets, answer(unix.EAFNOSUPPORT))
	out = append(append(out, unless(unix.BPF_JEQ, unix.SYS_CLONE, uint8(len(clone)))), clone...)      //nolint:gosec // four
	out = append(append(out, unless(unix.BPF_JEQ, unix.SYS_SOCKET, uint8(len(sockets)))), sockets...) //nolint:gosec // ten
	return append(out, allow)
}

// Thread applies the rules to whatever this thread becomes by exec, and to all its children. The caller must keep the goroutine on
// the thread.
func (r Rules) Thread() error { return r.install(0) }

// Process applies the rules to every thread of this process, and to everything that they start. They gain no privileges by exec any
// more.
func (r Rules) Process() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return r.install(unix.SECCOMP_FILTER_FLAG_TSYNC)
}

func (r Rules) install(flags uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	instructions := r.program()
	program := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]} //nolint:gosec // some 150
	other, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&program))) //nolint:gosec // as the kernel takes it
	switch {
	case errno != 0:
		return fmt.Errorf("install a seccomp filter: %w (the kernel needs CONFIG_SECCOMP_FILTER)", errno)
	case other != 0:
		return fmt.Errorf("install a seccomp filter: thread %d has another filter", other)
	}
	return nil
}

// Filtered reports whether this process already has a filter, such as the container runtime's.
func Filtered() (bool, error) {
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if errors.Is(err, unix.EINVAL) {
		return false, fmt.Errorf("check for a seccomp filter: %w (the kernel needs CONFIG_SECCOMP)", err)
	}
	return mode != 0, err
}
