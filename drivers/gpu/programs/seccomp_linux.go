package programs

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where the kernel puts what a filter reads (struct seccomp_data in linux/seccomp.h).
const (
	numberAt       = 0
	architectureAt = 4
	argumentAt     = 16 // the lower half of the first argument, on machines that put it first
)

// newest is the last system call that was looked at for this list. A later one is answered as by a kernel that does not have it yet.
const newest = unix.SYS_REMOVEXATTRAT

// newNamespaces are the flags of clone that make namespaces. In a user namespace of its own a process has every capability again.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

// refused are the system calls that change the machine, and those that reach deep into the kernel and that no program of the driver makes:
// what the container runtimes' default profile refuses (seccomp/default.go in github.com/moby/profiles), and ptrace, which it allows.
func refused() []uint32 {
	return append(refusedHere(),
		// namespaces, mounts and roots
		unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
		unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
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
}

// families are the sockets that a program may make. The others are of the kernel's less used networks and of its ciphers.
func families() []uint32 { return []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} }

// filter is the program that the kernel runs before each system call. Every test jumps over one instruction at most, so that the list may
// be of any length.
func filter() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	answer := func(errno unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	// The instruction after it is passed over unless the value fits, or where it does.
	when := func(test uint16, value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: value, Jf: 1}
	}
	unless := func(test uint16, value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: value, Jt: 1}
	}
	out := []unix.SockFilter{
		// Numbers of another architecture, such as of 32-bit programs, mean other calls.
		load(architectureAt), unless(unix.BPF_JEQ, architecture), answer(unix.ENOSYS),
		load(numberAt),
		// The C library goes on with clone, whose flags can be looked at: those of clone3 are behind a pointer.
		when(unix.BPF_JEQ, unix.SYS_CLONE3), answer(unix.ENOSYS),
		when(unix.BPF_JGT, newest), answer(unix.ENOSYS),
	}
	for _, number := range refused() {
		out = append(out, when(unix.BPF_JEQ, number), answer(unix.EPERM))
	}
	sockets := []unix.SockFilter{load(argumentAt)}
	for _, family := range families() {
		sockets = append(sockets, when(unix.BPF_JEQ, family), allow)
	}
	sockets = append(sockets, answer(unix.EAFNOSUPPORT))
	out = append(out,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, K: unix.SYS_CLONE, Jf: 4},
		load(argumentAt), when(unix.BPF_JSET, newNamespaces), answer(unix.EPERM), allow,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ, K: unix.SYS_SOCKET, Jf: uint8(len(sockets))}, //nolint:gosec // ten
	)
	return append(append(out, sockets...), allow)
}

// refuseSystemCalls holds what this thread becomes by exec, and all its children, to the filter. The thread must not be able to gain
// privileges any more, and the caller keeps the goroutine on it.
func refuseSystemCalls() error {
	instructions := filter()
	program := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]} //nolint:gosec // some 150
	//nolint:gosec // the kernel takes a pointer as a number
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("refusing system calls by a seccomp filter: %w (the kernel needs CONFIG_SECCOMP_FILTER)", err)
	}
	return nil
}
