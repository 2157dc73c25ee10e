package sharing

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/tmpfs"
)

// directory has the files of a claim's daemon:
//
//	pipe   its sockets, which the claim's containers see too
//	log    its logs
//	shm    /dev/shm of the daemon and of the claim's containers
//	root   the mount point of its root directory, for it alone
//	settings.json   the request to the Keeper
//
// Containers whose processes are root can write whatever they like into pipe and shm, links to elsewhere among it. The daemon follows those
// (it opens its lock and its process number's file without O_NOFOLLOW, as version 550.163.01 does): they lead nowhere in its own root.
// Everything else here follows none.
type directory struct {
	dir   string
	claim types.UID
	// bounds are the size of shm; zero: no part has a limit.
	bounds tmpfs.Bounds
}

func (d directory) path(name string) string { return filepath.Join(d.dir, string(d.claim), name) }

// control is the socket on which the daemon takes commands.
func (d directory) control() string { return d.path("pipe/control") }

// prepare makes missing directories, and removes leftovers of an earlier daemon or a container from pipe. The directory itself stays:
// containers have it mounted.
func (d directory) prepare() error {
	for name, mode := range map[string]os.FileMode{"pipe": 0o755, "log": 0o700, "root": 0o700, "shm": os.ModeSticky | 0o777} {
		if bounds, bounded := d.boundsOf(name); bounded {
			if err := tmpfs.Make(d.path(name), mode, bounds); err != nil {
				return fmt.Errorf("make the MPS directories of a claim: %w; --mps-size=0 makes them without a size limit", err)
			}
			continue
		}
		if err := errors.Join(os.MkdirAll(d.path(name), 0o755), os.Chmod(d.path(name), mode)); err != nil {
			return fmt.Errorf("make the MPS directories of a claim: %w", err)
		}
	}
	return d.clear("pipe")
}

// clear removes the content of a directory.
func (d directory) clear(name string) error {
	root, err := os.OpenRoot(d.path(name)) // no link below leads out of it
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only a descriptor
	list, err := root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = list.Close() }() // only read
	for {
		entries, err := list.ReadDir(64)
		for _, entry := range entries {
			if err := root.RemoveAll(entry.Name()); err != nil {
				return fmt.Errorf("empty %s: %w", d.path(name), err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// errNoDaemon means that the claim has no running daemon.
var errNoDaemon = errors.New("the socket of an MPS control daemon does not exist")

// check makes sure that control is a daemon's: a socket (a FIFO in old versions) owned by root, and no link.
func (d directory) check() error {
	info, err := os.Lstat(d.control())
	if errors.Is(err, fs.ErrNotExist) {
		return errNoDaemon
	}
	if err != nil {
		return err
	}
	if info.Mode()&(os.ModeSocket|os.ModeNamedPipe) == 0 {
		return fmt.Errorf("%s is neither a socket nor a FIFO (%s): a container with this claim put it there", d.control(), info.Mode())
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, not to %d: a container with this claim put it there", d.control(), owner.Uid, os.Geteuid())
	}
	return nil
}

func (d directory) remove() error {
	for _, name := range []string{"pipe", "log", "shm"} {
		if err := tmpfs.Release(d.path(name)); err != nil {
			return err
		}
	}
	return os.RemoveAll(filepath.Join(d.dir, string(d.claim)))
}
