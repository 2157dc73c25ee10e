package seccomp

import "golang.org/x/sys/unix"

// architecture is the only one whose system calls are allowed. The calls of x32 share it, with numbers beyond newest.
const architecture = unix.AUDIT_ARCH_X86_64

// refusedHere are refused calls that other architectures do not have.
func refusedHere() []uint32 {
	return []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE, unix.SYS_USELIB}
}
