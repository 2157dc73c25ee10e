// Package smalldisk gives tests directories on disks that are full, without root: small file systems in memory, mounted in a
// namespace that only the tests and their child processes see.
package smalldisk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// insideEnv marks a process that Enter started.
const insideEnv = "SIMCLUSTER_OWN_MOUNTS"

// ballastFile fills the remaining space.
const ballastFile = ".ballast"

// Enter runs this same program again, with the same arguments, in a user and mount namespace of its own, and returns its exit
// status. In that run, ran is false. If the machine allows no such namespace, the error reports that. The caller may continue
// without it, but cannot Fill.
func Enter() (status int, ran bool, err error) {
	if Inside() {
		return 0, false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
		Pdeathsig:   syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, false, fmt.Errorf("this machine lets no user make a mount namespace: %w", err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 0, true, fmt.Errorf("wait for the run in a namespace: %w", err)
	}
	return cmd.ProcessState.ExitCode(), true, nil
}

// Inside reports whether Fill works in this process.
func Inside() bool { return os.Getenv(insideEnv) != "" }

// Fill moves the directory with its content to a separate disk without a free byte. empty frees space again. The disk stays until Release.
// Sockets are not on it: until Release their paths refuse connections, and existing connections stay.
func Fill(dir string) (empty func() error, err error) {
	if !mounted(dir) {
		if err := mount(dir); err != nil {
			return nil, fmt.Errorf("put %s on a small disk: %w", dir, err)
		}
	}
	ballast := filepath.Join(dir, ballastFile)
	if err := fill(ballast); err != nil {
		return nil, fmt.Errorf("fill the disk of %s: %w", dir, err)
	}
	return func() error { return os.Remove(ballast) }, nil
}

// Release removes the disk, and moves its content back to the directory. Nothing should write there meanwhile.
func Release(dir string) error {
	if !mounted(dir) {
		return nil
	}
	if err := release(dir); err != nil {
		return fmt.Errorf("take the small disk of %s away: %w", dir, err)
	}
	return nil
}

func release(dir string) error {
	if err := os.Remove(filepath.Join(dir, ballastFile)); err != nil && !os.IsNotExist(err) {
		return err
	}
	aside := dir + ".above"
	if err := copyFiles(aside, dir); err != nil {
		return err
	}
	defer os.RemoveAll(aside) //nolint:errcheck // it lies in the test's own directory
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := removeFiles(dir); err != nil {
		return err
	}
	return copyFiles(dir, aside)
}

// copyFiles copies directories and files. It leaves out sockets, since a listener is bound to the original one.
func copyFiles(to, from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, rest), 0o755)
		case entry.Type()&fs.ModeSocket != 0:
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rest), content, 0o644)
	})
}

// removeFiles empties a directory, except for sockets and the directories that they are in.
func removeFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case entry.Type()&fs.ModeSocket != 0:
			continue
		case entry.IsDir():
			if err := removeFiles(path); err != nil {
				return err
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
				return err
			}
		default:
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func mounted(dir string) bool {
	var own, parent unix.Stat_t
	return unix.Stat(dir, &own) == nil && unix.Stat(filepath.Dir(dir), &parent) == nil && own.Dev != parent.Dev
}

// mount mounts a file system over the directory, with the directory's content and little free space.
func mount(dir string) error {
	aside := dir + ".below"
	if err := copyFiles(aside, dir); err != nil {
		return fmt.Errorf("copy the present files: %w", err)
	}
	defer os.RemoveAll(aside) //nolint:errcheck // it lies in the test's own directory
	// Space for the files of a hundred claims.
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=512k,mode=0755"); err != nil {
		return err
	}
	if err := copyFiles(dir, aside); err != nil {
		return fmt.Errorf("copy the former files: %w", err)
	}
	return nil
}

// fill writes until the disk is full.
func fill(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // its content is not needed
	for block := make([]byte, 4096); ; {
		if _, err := file.Write(block); err != nil {
			if errors.Is(err, syscall.ENOSPC) {
				return nil
			}
			return err
		}
	}
}
