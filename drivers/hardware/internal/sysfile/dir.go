// Package sysfile reads attributes of sysfs directories.
//
// A scan of a node with 512 virtual functions reads about eight thousand one-line files. os.ReadFile needs five system calls and a
// buffer for each. A Dir needs three, relative to an open directory, and reuses its buffer. The kernel takes four fifths of a
// scan's time, so the way to save time is to read only the needed files.
package sysfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pageSize is the largest size of a sysfs attribute: the kernel gives a show function one page.
const pageSize = 4096

// Dir is an open directory. Its methods read attributes by name. It is not safe for concurrent use: its methods share one buffer.
type Dir struct {
	path  string
	fd    int
	below string // the argument of Below with a slash appended; empty: the directory itself
	buf   *[pageSize]byte
}

// closed returns a Dir that is not open yet.
func closed() *Dir { return &Dir{fd: -1, buf: new([pageSize]byte)} }

// Open opens the directory at path. The caller closes it.
func Open(path string) (*Dir, error) {
	d := closed()
	if err := d.Reopen(path); err != nil {
		return nil, err
	}
	return d, nil
}

// Reopen switches d to the directory at path, and keeps its buffer. After an error d is closed.
func (d *Dir) Reopen(path string) error {
	d.Close()
	// O_PATH is the cheaper way to open a directory that only serves to name files. Names opens what it lists.
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d.path, d.fd = path, fd
	return nil
}

// Below returns d's subdirectory name without opening it, which is cheaper for a few attributes. It shares d's buffer and lives as
// long as d is open. Do not close or reopen it.
func (d *Dir) Below(name string) *Dir {
	return &Dir{path: d.path, fd: d.fd, below: d.below + name + "/", buf: d.buf}
}

// Path is the path of the attribute name, for errors; "" is the directory itself.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, d.below, name) }

// Close closes the directory; closing twice does nothing.
func (d *Dir) Close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
		d.fd = -1
	}
}

// Bytes reads the attribute name, at most one page of it. The slice is valid until the next call on d.
func (d *Dir) Bytes(name string) ([]byte, error) {
	// O_NONBLOCK: if a damaged tree has a FIFO in place of an attribute, open must not wait for a writer.
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, d.below+name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, d.fail("open", name, err)
	}
	n, err := retry(func() (int, error) { return unix.Read(fd, d.buf[:]) })
	_ = unix.Close(fd)
	if err != nil {
		return nil, d.fail("read", name, err)
	}
	return d.buf[:n], nil
}

// Text reads the attribute name without its trailing newline and blanks.
func (d *Dir) Text(name string) (string, error) {
	b, err := d.Bytes(name)
	if err != nil {
		return "", err
	}
	s := strings.TrimRight(string(b), "\n \x00")
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return "", d.Invalid(name, s, "one line of printable text")
		}
	}
	return s, nil
}

// Hex reads a hexadecimal attribute, with or without 0x, of at most bits bits.
func (d *Dir) Hex(name string, bits int) (uint64, error) {
	s, err := d.Text(name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, bits)
	if err != nil {
		return 0, d.Invalid(name, s, fmt.Sprintf("a hexadecimal number of at most %d bits", bits))
	}
	return v, nil
}

// Int reads a decimal attribute.
func (d *Dir) Int(name string) (int, error) {
	s, err := d.Text(name)
	if err != nil {
		return 0, err
	}
	return d.ParseInt(name, s)
}

// ParseInt parses text, which was read from the attribute name, as a decimal number.
func (d *Dir) ParseInt(name, text string) (int, error) {
	v, err := strconv.Atoi(text)
	if err != nil {
		return 0, d.Invalid(name, text, "a decimal number")
	}
	return v, nil
}

// Link returns the last element of the target of the symbolic link name: a driver's, group's or parent's name.
func (d *Dir) Link(name string) (string, error) {
	n, err := retry(func() (int, error) { return unix.Readlinkat(d.fd, d.below+name, d.buf[:]) })
	if err != nil {
		return "", d.fail("readlink", name, err)
	}
	return filepath.Base(string(d.buf[:n])), nil
}

// Names returns the sorted entries of the subdirectory name, or of d itself for ".".
func (d *Dir) Names(name string) ([]string, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, d.below+name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, d.fail("open", name, err)
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var names []string
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(fd, d.buf[:]) })
		if err != nil {
			return nil, d.fail("list", name, err)
		}
		if n == 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(d.buf[:n], -1, names)
	}
}

// Invalid is the error for an attribute with unexpected text. It wraps ErrInvalid.
func (d *Dir) Invalid(name, text, want string) error {
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	return fmt.Errorf("%s: %q is not %s: %w", d.Path(name), text, want, ErrInvalid)
}

// ErrInvalid is wrapped by the error for every attribute that was read but could not be parsed.
var ErrInvalid = errors.New("invalid attribute")

func (d *Dir) fail(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: d.Path(name), Err: err}
}

// Names returns the sorted entries of the directory at path.
func Names(path string) ([]string, error) {
	d, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Names(".")
}

// Optional does not return an error for a missing attribute: kernels and drivers have different attributes. Text that cannot be parsed
// stays an error, because it means that the tree cannot be trusted.
func Optional[T any](v T, err error) (T, error) {
	var zero T
	// A driver that does not support an attribute answers the read with EINVAL, EOPNOTSUPP or ENODATA (for example net's speed and
	// carrier while the link is down).
	for _, absent := range []error{fs.ErrNotExist, unix.EINVAL, unix.EOPNOTSUPP, unix.ENODATA, unix.ENOTDIR} {
		if errors.Is(err, absent) {
			return zero, nil
		}
	}
	return v, err
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
