package sharing

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Reexec makes MPS.Command out of this program's own subcommand words (such as gpu-plugin mps-daemon), which must call WithShm.
func Reexec(words ...string) func(shm, program string, args ...string) *exec.Cmd {
	return func(shm, program string, args ...string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", append(append(append([]string{}, words...), shm, program), args...)...)
		// A mount namespace of its own: only the daemon sees shm on /dev/shm.
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		return cmd
	}
}

// WithShm becomes program, with shm in the place of /dev/shm and without the privileges that only this mount needs. It returns only to say why
// it could not.
func WithShm(shm, program string, args ...string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts to this process: %w (MPS needs CAP_SYS_ADMIN)", err)
	}
	if err := syscall.Mount(shm, "/dev/shm", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s on /dev/shm: %w", shm, err)
	}
	// Capabilities are a thread's, and exec makes this one the program.
	runtime.LockOSThread()
	if err := dropPrivileges(); err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", program, syscall.Exec(program, append([]string{program}, args...), os.Environ()))
}
