// Package cores gives the containers that share a GPU their seats: a page for each, and the order in which they have their slots of the
// node's clock. The library in a container (gpufabric.io/drivers/gpu/limiter, gate.h) does the rest, without this program: the clock, the
// order and the pages determine when a container may launch.
//
// A GPU has a directory with a file of the order and a page for each container. Containers have the directory read-only, and may write
// their own page alone. This program writes the order when a container comes or goes, and nothing at run time; while it is away, those
// that have a seat go on.
//
// A container decides how its own page reads: that it never wants the GPU, and its time is lent to others; that it always does, and
// nothing of its percentage is lent. It cannot enlarge its page where the directory has a bound, since all of its pages are taken from the
// beginning, and one that cuts its page loses its own seat. Nobody maps another's page.
package cores

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/node/tmpfs"
)

// Sizes and places of the files (gate.h, seats.h).
const (
	pageBytes  = 4096
	pageMagic  = 0x53504647
	orderMagic = 0x4f504647
	version    = 1
	nameBytes  = 16
	chargedAt  = 152 // in a page
	headBytes  = 64  // of the order
	entryBytes = 24
)

// most is how many containers may have a percentage of one GPU.
const most = 128

// orderFile is the file of the order, in the directory of a GPU. Pages that no container has begin with free.
const (
	orderFile = "order"
	free      = "free-"
)

// ErrFull marks a GPU on which no further container can have a percentage.
var ErrFull = fmt.Errorf("%d containers have percentages of the GPU, which is the maximum", most)

// Seats are the seats of a node's containers. With its fields set it has none; Resume finds those of an earlier run of this program.
type Seats struct {
	// Directory has a directory for each GPU, at the same path here and on the node.
	Directory string
	// Lend lets a container use the time of a GPU that others leave. Without it, none ever has more than its percentage.
	Lend bool
	// Bounded mounts a file system of exactly the files' size for each GPU: no container can fill it. Needs privilege. Without it a
	// container can enlarge its page on the node's disk.
	Bounded bool

	mu   sync.Mutex
	gpus map[string]*gpu // by UUID
}

// gpu is one GPU's containers.
type gpu struct {
	directory string
	// order stays open for writing, so that no container can have a lease on it (fcntl(2), F_SETLEASE), for which an open would wait.
	order      *os.File
	generation uint64
	members    map[string]*holder // by the container's name
}

// holder is a container with a percentage of a GPU.
type holder struct {
	percent int
	page    string
	// at and charged are the values of the last call of Used, and had is its result.
	at      time.Time
	charged time.Duration
	had     float64
}

// pageOf is the name of a container's page. By it the order is the same on all GPUs, for all containers of a pod and all shares of a claim,
// whose UID the name begins with. Other containers see it: it does not identify the owner.
func pageOf(name string) string {
	uid, _, _ := strings.Cut(name, "_")
	first, second := sha256.Sum256([]byte(uid)), sha256.Sum256([]byte(name))
	return hex.EncodeToString(first[:nameBytes/4]) + hex.EncodeToString(second[:nameBytes/4])
}

// Open gives a container a seat on each GPU of which it has a percentage. A seat that it already has stays, with its use.
func (s *Seats) Open(name string, limits []limiter.Limit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range limits {
		if l.Cores <= 0 {
			continue
		}
		g, err := s.gpu(l.UUID)
		if err != nil {
			return err
		}
		if err := g.add(name, min(l.Cores, 100)); err != nil {
			return fmt.Errorf("give %s a seat on GPU %s: %w", name, l.UUID, err)
		}
		if err := g.write(s.Lend); err != nil {
			return err
		}
	}
	return nil
}

// Close takes a container's seats. One without any is no error.
func (s *Seats) Close(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, g := range s.gpus {
		if g.members[name] == nil {
			continue
		}
		delete(g.members, name)
		if err := os.Remove(filepath.Join(g.directory, pageOf(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		g.refill()
		errs = append(errs, g.write(s.Lend))
	}
	return errors.Join(errs...)
}

// Resume gives the containers of these names their seats, as after a restart of this program or a boot of the node, and takes all others'.
// limits returns a container's; fs.ErrNotExist: it is gone.
func (s *Seats) Resume(ctx context.Context, names []string, limits func(name string) ([]limiter.Limit, error)) {
	for _, name := range names {
		had, err := limits(name)
		if err == nil {
			err = s.Open(name, had)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Each process of a container enforces the container's limit of cores by itself",
				"container", name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.Directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Could not remove the seats of containers that are gone", "directory", s.Directory)
	}
	for _, entry := range entries {
		g, err := s.gpu(entry.Name())
		if err == nil {
			g.sweep()
			g.refill()
			err = g.write(s.Lend)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not remove the seats of containers that are gone", "gpu", entry.Name())
		}
	}
}

// Mounts are those by which a container finds its seats, which Open must have made when the container starts.
func (s *Seats) Mounts(name string, limits []limiter.Limit) []*specs.Mount {
	var out []*specs.Mount
	for _, l := range limits {
		if l.Cores <= 0 {
			continue
		}
		directory := filepath.Join(s.Directory, l.UUID)
		out = append(out,
			&specs.Mount{HostPath: directory, ContainerPath: filepath.Join(limiter.Cores, l.UUID),
				Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"}},
			&specs.Mount{HostPath: filepath.Join(directory, pageOf(name)), ContainerPath: filepath.Join(limiter.CoresOwn, l.UUID),
				Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}})
	}
	return out
}

// Use is a container's part of a GPU's time.
type Use struct {
	PodUID    string
	Container string
	UUID      string
	// Percent is of the time since the last call of Used, or of a second at least.
	Percent float64
}

// Used returns the use of the containers with seats, as their library counts it.
func (s *Seats) Used() []Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Use
	for uuid, g := range s.gpus {
		for name, m := range g.members {
			uid, container, _ := strings.Cut(name, "_")
			out = append(out, Use{uid, container, uuid, m.used(time.Now(), g.charged(name))})
		}
	}
	slices.SortFunc(out, func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Container, b.Container), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}

// used is the percentage since the last call, where that is a second ago.
func (m *holder) used(now time.Time, charged time.Duration) float64 {
	passed := now.Sub(m.at)
	if !m.at.IsZero() && passed < time.Second {
		return m.had
	}
	if !m.at.IsZero() {
		m.had = min(max(100*float64(charged-m.charged)/float64(passed), 0), 100) // the page is the container's to write
	}
	m.at, m.charged = now, charged
	return m.had
}

// Charged is how much of a GPU's time a container had until now, as its library counts it; 0 where it has no seat.
func (s *Seats) Charged(name, uuid string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.gpus[uuid]; g != nil && g.members[name] != nil {
		return g.charged(name)
	}
	return 0
}

// enclose makes the directory, which only a process with the capability to pass directories enters: the monitor, which sees this program's
// directories as root, does not. Containers have mounts that lead to their files.
func (s *Seats) enclose() error {
	if err := os.MkdirAll(s.Directory, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(s.Directory, 0); err != nil {
		return err
	}
	if _, err := os.ReadDir(s.Directory); err != nil {
		return os.Chmod(s.Directory, 0o700) //nolint:gosec // without privilege, as on fake hardware
	}
	return nil
}

// gpu returns the GPU of a UUID. It makes its directory, with the pages and the order.
func (s *Seats) gpu(uuid string) (*gpu, error) {
	if g := s.gpus[uuid]; g != nil {
		return g, nil
	}
	g := &gpu{directory: filepath.Join(s.Directory, uuid), members: map[string]*holder{}}
	if err := s.enclose(); err != nil {
		return nil, fmt.Errorf("make the directory of containers' seats on GPUs: %w", err)
	}
	const mode = 0o755 // all users of containers read
	if s.Bounded {
		bounds := tmpfs.Bounds{Bytes: (most + 1) * int64(max(pageBytes, os.Getpagesize())), Files: most + 1}
		if err := tmpfs.Make(g.directory, mode, bounds); err != nil {
			return nil, fmt.Errorf("make the directory of containers' seats on GPU %s: %w", uuid, err)
		}
	} else if err := os.MkdirAll(g.directory, mode); err != nil {
		return nil, fmt.Errorf("make the directory of containers' seats on GPU %s: %w", uuid, err)
	}
	if err := g.restart(); err != nil {
		return nil, fmt.Errorf("make the order of containers on GPU %s: %w", uuid, err)
	}
	g.refill()
	if s.gpus == nil {
		s.gpus = map[string]*gpu{}
	}
	s.gpus[uuid] = g
	return g, nil
}

// restart makes the file of the order, or takes the generation of the one that is there. Pages of before a boot are removed: their times
// are of another clock.
func (g *gpu) restart() error {
	const mode = 0o644 // all users of containers read it
	order, err := os.OpenFile(filepath.Join(g.directory, orderFile), os.O_RDWR|os.O_CREATE, mode)
	if err != nil {
		return err
	}
	g.order = order
	had := make([]byte, pageBytes)
	if n, err := order.ReadAt(had, 0); n != pageBytes {
		if err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(err, order.Close())
		}
		_, err := order.WriteAt(make([]byte, pageBytes), 0) // not by Truncate: the page takes its place among those that are bounded
		return errors.Join(err, order.Truncate(pageBytes))
	}
	g.generation = binary.NativeEndian.Uint64(had[16:])
	now, err := monotonic()
	if err != nil {
		return err
	}
	if int64(binary.NativeEndian.Uint64(had[24:])) > now { //nolint:gosec // a time
		g.sweep()
	}
	return nil
}

// monotonic is CLOCK_MONOTONIC, in nanoseconds.
func monotonic() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the node's clock: %w", err)
	}
	return t.Nano(), nil
}

// pages are the names of the pages, with or without a container.
func (g *gpu) pages() (taken, unused []string) {
	entries, _ := os.ReadDir(g.directory) // add reports the error
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasPrefix(name, free):
			unused = append(unused, name)
		case name != orderFile:
			taken = append(taken, name)
		}
	}
	return taken, unused
}

// sweep removes pages that no member has.
func (g *gpu) sweep() {
	taken, _ := g.pages()
	for _, name := range taken {
		if !slices.ContainsFunc(g.membersInOrder(), func(m *holder) bool { return m.page == name }) {
			_ = os.Remove(filepath.Join(g.directory, name)) // the next start tries again
		}
	}
}

// refill makes the pages that are missing, so that containers find no free memory to enlarge theirs with. A container that has enlarged
// its page all the same, where another had cut its own, loses that. Without room fewer containers can have a seat.
func (g *gpu) refill() {
	taken, unused := g.pages()
	for _, name := range taken {
		path := filepath.Join(g.directory, name)
		if info, err := os.Lstat(path); err == nil && info.Size() > pageBytes {
			if file, err := openPage(path, os.O_WRONLY); err == nil {
				_ = file.Truncate(pageBytes) // as above
				_ = file.Close()
			}
		}
	}
	for i, missing := 0, most-len(taken)-len(unused); i < most && missing > 0; i++ {
		name := fmt.Sprintf("%s%03d", free, i)
		if slices.Contains(unused, name) {
			continue
		}
		path := filepath.Join(g.directory, name)
		if err := os.WriteFile(path, make([]byte, pageBytes), 0o600); err != nil {
			_ = os.Remove(path)
			return
		}
		missing--
	}
}

// add gives a container a page, unless it has one.
func (g *gpu) add(name string, percent int) error {
	page := pageOf(name)
	path := filepath.Join(g.directory, page)
	if info, err := os.Lstat(path); err != nil || info.Size() != pageBytes {
		g.refill()
		_, unused := g.pages()
		if len(unused) == 0 {
			return ErrFull
		}
		from := filepath.Join(g.directory, unused[0])
		if err := prepare(from, page); err != nil {
			return err
		}
		if err := os.Rename(from, path); err != nil {
			return err
		}
	}
	g.members[name] = &holder{percent: percent, page: page}
	return nil
}

// openPage opens a container's page. A container that is root may have a lease on it, for whose end an open without O_NONBLOCK waits
// (fcntl(2), F_SETLEASE).
func openPage(path string, how int) (*os.File, error) {
	return os.OpenFile(path, how|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
}

// prepare writes the beginning of a page.
func prepare(path, page string) error {
	content := make([]byte, pageBytes)
	binary.NativeEndian.PutUint32(content, pageMagic)
	binary.NativeEndian.PutUint32(content[4:], version)
	copy(content[8:8+nameBytes], page)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(content, 0)
	// The container's processes may have any user; no other container can write where it is mounted.
	return errors.Join(err, file.Chmod(0o666), file.Close())
}

// membersInOrder are the containers by the names of their pages.
func (g *gpu) membersInOrder() []*holder {
	out := make([]*holder, 0, len(g.members))
	for _, m := range g.members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *holder) int { return cmp.Compare(a.page, b.page) })
	return out
}

// write writes the order. Readers leave one that is not whole, as after a kill.
func (g *gpu) write(lend bool) error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	g.generation++
	members := g.membersInOrder()
	content := make([]byte, pageBytes)
	put := binary.NativeEndian
	put.PutUint32(content, orderMagic)
	put.PutUint32(content[4:], version)
	put.PutUint64(content[16:], g.generation)
	put.PutUint64(content[24:], uint64(now)) //nolint:gosec // since the boot
	put.PutUint32(content[32:], uint32(len(members)))
	if lend {
		put.PutUint32(content[36:], 1)
	}
	for i, m := range members {
		entry := content[headBytes+i*entryBytes:]
		copy(entry[:nameBytes], m.page)
		put.PutUint32(entry[nameBytes:], uint32(m.percent)) //nolint:gosec // 1 to 100
	}
	sum := fnv.New64a()
	_, _ = sum.Write(content[16 : headBytes+len(members)*entryBytes]) // it never fails
	put.PutUint64(content[8:], sum.Sum64())
	if _, err := g.order.WriteAt(content, 0); err != nil {
		return fmt.Errorf("write the order of containers on a GPU: %w", err)
	}
	return nil
}

// charged reads a container's charge from its page. A truncated page has none.
func (g *gpu) charged(name string) time.Duration {
	file, err := openPage(filepath.Join(g.directory, pageOf(name)), os.O_RDONLY)
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }() // it was read
	content := make([]byte, chargedAt+8)
	if n, err := file.ReadAt(content, 0); err != nil || n != len(content) || !bytes.Equal(content[8:8+nameBytes], []byte(pageOf(name))) {
		return 0
	}
	return max(0, time.Duration(binary.NativeEndian.Uint64(content[chargedAt:]))) //nolint:gosec // the container's own word
}
