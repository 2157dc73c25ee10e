package programs

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// kept are the capabilities of an MPS control daemon. The daemon and its server run as root for clients of any user: they make the
// clients' pipes, and the server takes their identity. None of these capabilities gives rights over the node.
func kept() []uintptr {
	return []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL,
		unix.CAP_IPC_LOCK, unix.CAP_IPC_OWNER, unix.CAP_SYS_NICE,
	}
}

// dropPrivileges removes every other capability from the program that this thread executes, and from all its children. The caller must
// keep the goroutine on its thread.
func dropPrivileges() error {
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		if slices.Contains(kept(), capability) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return nil
}
