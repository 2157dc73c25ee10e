package sharing

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/node/tmpfs"
)

// mostFiles is the maximum number of files in the /dev/shm of a claim's containers.
const mostFiles = 16 << 10

// boundsOf returns the size of a part of a claim's directory, and whether it is bounded. Clients and the daemon have separate
// parts, so that a full /dev/shm does not stop the daemon.
func (d directory) boundsOf(name string) (tmpfs.Bounds, bool) {
	if d.bounds.Bytes == 0 {
		return tmpfs.Bounds{}, false
	}
	switch name {
	case "shm":
		return d.bounds, d.ours(name)
	case "pipe": // sockets and FIFOs: five of the daemon's, and some for each client
		return tmpfs.Bounds{Bytes: 1 << 20, Files: 4 << 10}, d.ours(name)
	case "log": // no container sees it, but a client that fails often makes the daemon write to it
		return tmpfs.Bounds{Bytes: 16 << 20, Files: 64}, true
	}
	return tmpfs.Bounds{}, false
}

// ours reports whether a part was made with bounds, or is still to be made. A part that was made without bounds (--mps-size was 0)
// is used in containers, so it stays until its claim ends. A part whose file system went away in a reboot is recognized by its mode, which
// is visible only without a mount.
func (d directory) ours(name string) bool {
	info, err := os.Lstat(d.path(name))
	if err != nil || info.Mode().Perm() == tmpfs.Below {
		return true
	}
	var here, above unix.Stat_t
	return unix.Lstat(d.path(name), &here) == nil && unix.Lstat(filepath.Dir(d.path(name)), &above) == nil && here.Dev != above.Dev
}

// ParseBounds reads the flag --mps-size, which limits the /dev/shm of a claim's containers: a quantity, such as 1Gi; empty or 0: no
// limit.
func ParseBounds(size string) (tmpfs.Bounds, error) {
	if size == "" {
		return tmpfs.Bounds{}, nil
	}
	q, err := resource.ParseQuantity(size)
	if err != nil || q.Sign() < 0 {
		return tmpfs.Bounds{}, fmt.Errorf("--mps-size %q: want a quantity such as 1Gi, or 0 for no limit", size)
	}
	if q.IsZero() {
		return tmpfs.Bounds{}, nil
	}
	return tmpfs.Bounds{Bytes: q.Value(), Files: mostFiles}, nil
}
