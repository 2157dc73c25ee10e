package seccomp

import "golang.org/x/sys/unix"

// architecture is the only one whose system calls are allowed.
const architecture = unix.AUDIT_ARCH_AARCH64

// refusedHere are refused calls that other architectures do not have.
func refusedHere() []uint32 { return nil }
