package tree

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// writer makes files below one directory. After the first error it does nothing more; err keeps that error.
type writer struct {
	root  string
	made  map[string]bool
	plain bool
	err   error
}

func newWriter(root string, plain bool) *writer {
	return &writer{root: root, made: map[string]bool{"": true, ".": true}, plain: plain}
}

// dir makes a directory and those above it.
func (w *writer) dir(path string) {
	if w.err != nil || w.made[path] {
		return
	}
	w.dir(filepath.Dir(path))
	w.keep(os.Mkdir(filepath.Join(w.root, path), 0o755))
	w.made[path] = true
}

func (w *writer) keep(err error) {
	if w.err == nil && !errors.Is(err, os.ErrExist) {
		w.err = err
	}
}

// file writes one file; text should end in a newline where sysfs's does.
func (w *writer) file(path, text string) {
	w.bytes(path, []byte(text), 0o644)
}

func (w *writer) bytes(path string, data []byte, mode os.FileMode) {
	w.dir(filepath.Dir(path))
	if w.err == nil {
		w.keep(create(w.root+"/"+path, data, mode))
	}
}

// create writes a new file with three system calls. os.WriteFile makes more (it checks whether the file can be polled), which would
// take half of the time for a node of 2,000 files.
func create(path string, data []byte, mode os.FileMode) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, uint32(mode))
	if err != nil {
		return &os.PathError{Op: "create", Path: path, Err: err}
	}
	for len(data) > 0 && err == nil {
		var n int
		if n, err = unix.Write(fd, data); errors.Is(err, unix.EINTR) {
			err = nil
		}
		data = data[max(n, 0):]
	}
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// files writes several files of one directory; names ending in a slash are not meant here.
func (w *writer) files(dir string, texts map[string]string) {
	for name, text := range texts {
		w.file(filepath.Join(dir, name), text+"\n")
	}
}

// link makes path a relative symbolic link to target; both are paths below root.
func (w *writer) link(path, target string) {
	w.dir(filepath.Dir(path))
	if w.err != nil {
		return
	}
	rel, err := filepath.Rel(filepath.Dir(path), target)
	if err == nil {
		err = os.Symlink(rel, filepath.Join(w.root, path))
	}
	w.keep(err)
}

// device makes a character device, or a plain empty file where that is not permitted.
func (w *writer) device(path string, major, minor int) {
	w.dir(filepath.Dir(path))
	if w.err != nil {
		return
	}
	w.keep(makeDevice(filepath.Join(w.root, path), major, minor, w.plain))
}

// makeDevice makes the node with mode 0666, the mode of the NVIDIA driver's devices without udev.
func makeDevice(path string, major, minor int, plain bool) error {
	if !plain {
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(uint32(major), uint32(minor))))
		if err == nil {
			return os.Chmod(path, 0o666) // the umask removed bits
		}
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			return &os.PathError{Op: "mknod", Path: path, Err: err}
		}
	}
	return os.WriteFile(path, nil, 0o666)
}

// charMajor gives the major of a device node; char is false for a plain file.
func charMajor(path string) (major int, char bool, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return int(unix.Major(st.Rdev)), st.Mode&unix.S_IFMT == unix.S_IFCHR, nil
}
