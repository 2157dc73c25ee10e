// Package cores is the node's arbiter of GPU time: it gives the containers that share a GPU their turns on it, in proportion to their
// percentages of its cores.
//
// The library in a container (gpufabric.io/drivers/gpu/limiter) launches on a GPU only in a turn, and gives the turn back when the GPU has
// done what it launched. It asks over a socket that is mounted read-only into that container alone, so that the socket says which container
// asks. What a container says and that counts is when its turn is over. It is charged from the grant until then, by this program's clock.
// A container that keeps its turns and does nothing is charged for them. One that says it is done, and is not, goes around the library, as
// it could without it. A container also says how long the GPU worked for it in the turn, by its events. The difference is the time that
// processes and this program needed to hear of each other. It is believed up to a small part of the turn, so that a lie gains no more.
//
// What a container can make this program do is bounded: its connections, the packets that are read of them in a second, and the answers
// that wait for it. This program takes no file descriptors of it.
//
// A connection counts as the container's whose socket it was made by, whichever process has it: a container that hands its connection to
// another one of its tenant shares its percentage with that.
//
// A process that dies loses its connection, and so its turn. While this program is away, or does not answer, each process holds itself to
// its container's percentage.
package cores

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/limiter"
)

// The kinds of packets (turns.h). A process sends the first four.
const (
	hello  uint32 = 1 + iota // which GPU
	want                     // a turn; again while it waits: is anybody there?
	more                     // its turn ends, and it has more to do
	done                     // its turn is over, and the GPU has nothing of it; so long it worked for it, 0: not known
	grant                    // a turn of so many nanoseconds
	wait                     // others have theirs
	closed                   // finish what is launched, and say done
)

// packet is the size of each packet in bytes: a kind, 4 unused bytes, nanoseconds, a UUID that ends at a NUL.
const packet = 64

// mostClients is how many connections a container may have: one for each of its processes and GPUs. Each takes 4 KiB here, and a node has
// hundreds of containers.
const mostClients = 512

// socket is its name in the directory of a container, which is at limiter.Turns there.
const socket = "socket"

// Arbiter gives turns. The zero value, with its fields set, has no containers. It keeps nothing: the processes of containers connect again.
type Arbiter struct {
	// Directory has a directory for each container, with its socket.
	Directory string
	// Lend lets a container have what others leave of a GPU. Without it, none ever has more than its percentage.
	Lend bool

	takesRights bool // for tests: as with a kernel that cannot refuse file descriptors
	closer      closer

	entry      sync.Once
	mu         sync.Mutex
	gpus       map[string]*gpu
	containers map[string]*container
}

// container is one that has a socket.
type container struct {
	listener *net.UnixListener
	stands   map[string]stand // by the GPU's UUID
	pace     pace             // of its connections
	closer   *closer          // nil: the kernel refuses packets with file descriptors

	mu      sync.Mutex
	clients map[*net.UnixConn]bool // nil: it is closed
	waits   sync.WaitGroup
}

// stand is where a container stands on a GPU.
type stand struct {
	gpu    *gpu
	member *member
	pace   *pace // of its processes' packets
}

// Path is the directory of a container's socket, to be mounted at limiter.Turns.
func (a *Arbiter) Path(name string) string { return filepath.Join(a.Directory, name) }

// Open makes a container's socket, and serves its processes until Close. Limits without cores are left out. A container that is opened
// again loses its connections, and what it used is forgotten.
func (a *Arbiter) Open(name string, limits []limiter.Limit) error {
	a.drop(name)
	directory := a.Path(name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("make the directory by which a container asks for its turns on GPUs: %w", err)
	}
	a.entry.Do(a.bar)
	listener, refuses, err := listen(directory, a.takesRights)
	if err != nil {
		return fmt.Errorf("make the socket by which a container asks for its turns on GPUs: %w", err)
	}
	c := &container{listener: listener, stands: map[string]stand{}, clients: map[*net.UnixConn]bool{},
		pace: pace{every: connectionEvery, burst: mostClients}}
	if !refuses {
		c.closer = &a.closer
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gpus == nil {
		a.gpus = map[string]*gpu{}
	}
	if a.containers == nil {
		a.containers = map[string]*container{}
	}
	for _, l := range limits {
		if l.Cores <= 0 {
			continue
		}
		if a.gpus[l.UUID] == nil {
			a.gpus[l.UUID] = &gpu{lend: a.Lend}
		}
		c.stands[l.UUID] = stand{a.gpus[l.UUID], &member{cores: min(l.Cores, 100)}, &pace{every: packetEvery, burst: mostClients}}
	}
	a.containers[name] = c
	c.waits.Go(c.serve)
	return nil
}

// bar closes the directory of all containers to whoever needs its permissions: the monitor sees it too, which parses tenants' files, and
// whoever reaches a socket asks in its container's name. This program and the container runtime need none (CAP_DAC_OVERRIDE).
func (a *Arbiter) bar() {
	_ = os.Chmod(a.Directory, 0)
	if opened, err := os.Open(a.Directory); err == nil {
		_ = opened.Close() // only whether it may
		return
	}
	_ = os.Chmod(a.Directory, 0o700) //nolint:gosec // without privilege, as on fake hardware
}

// listen makes the socket in a directory, whose path may be longer than a socket's may be. It says whether the kernel refuses file
// descriptors for it, with takesRights never.
//
//nolint:contextcheck // it waits for nothing
func listen(directory string, takesRights bool) (listener *net.UnixListener, refuses bool, err error) {
	path := filepath.Join(directory, socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	opened, err := os.Open(directory)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = opened.Close() }() // only its name was needed
	// Before it has a name, so that nobody can connect earlier.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		refuses = !takesRights && refuseRights(raw)
		return nil
	}}
	short := fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), socket)
	made, err := config.Listen(context.Background(), "unixpacket", short) // it waits for nothing
	if err != nil {
		return nil, false, err
	}
	listener = made.(*net.UnixListener)
	listener.SetUnlinkOnClose(false)              // the short name means something else by then
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // the container's processes may have any user
		return nil, false, errors.Join(err, listener.Close())
	}
	return listener, refuses, nil
}

// Close ends a container's turns and removes its socket. One that is not there is no error.
func (a *Arbiter) Close(name string) error {
	a.drop(name)
	return os.RemoveAll(a.Path(name))
}

// drop ends a container's connections. Its directory stays, since it is mounted in the container.
func (a *Arbiter) drop(name string) {
	a.mu.Lock()
	c := a.containers[name]
	delete(a.containers, name)
	a.mu.Unlock()
	if c != nil {
		c.end()
	}
}

// Stop ends all connections. The sockets stay in their directories, for Resume.
func (a *Arbiter) Stop() {
	a.mu.Lock()
	all := a.containers
	a.containers = nil
	a.mu.Unlock()
	for _, c := range all {
		c.end()
	}
}

// Resume opens the containers that have a directory, as after a restart of this program. limits returns a container's.
func (a *Arbiter) Resume(ctx context.Context, limits func(name string) ([]limiter.Limit, error)) {
	entries, err := os.ReadDir(a.Directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Containers with limits of cores hold themselves to these: their directories cannot be listed")
	}
	for _, entry := range entries {
		name := entry.Name()
		had, err := limits(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = a.Close(name) // its pod is gone
		case err == nil:
			err = a.Open(name, had)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "A container holds itself to its limit of cores: nobody gives it turns", "container", name)
		}
	}
}

// Use is what a container had of a GPU's time.
type Use struct {
	PodUID    string
	Container string
	UUID      string
	// Percent is of the time since the last call of Used, or of a second at least.
	Percent float64
}

// Used returns what the containers with limits of cores use.
func (a *Arbiter) Used() []Use {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Use
	for name, c := range a.containers {
		uid, container, _ := strings.Cut(name, "_")
		for uuid, s := range c.stands {
			out = append(out, Use{uid, container, uuid, s.gpu.share(s.member)})
		}
	}
	return out
}

// Charged is how much of a GPU's time a container was charged until now, since it was opened; 0 where it has no limit of the GPU's cores.
func (a *Arbiter) Charged(name, uuid string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.containers[name]
	if c == nil || c.stands[uuid].gpu == nil {
		return 0
	}
	return c.stands[uuid].gpu.charged(c.stands[uuid].member)
}

// serve accepts processes until the container is closed.
func (c *container) serve() {
	for {
		connection, err := c.listener.AcceptUnix()
		if err != nil {
			if c.closed() {
				c.away(c.listener)
				return
			}
			time.Sleep(time.Second) // no file descriptors are left; its processes hold themselves to their limits meanwhile
			continue
		}
		// A process that does not listen has few answers wait for it: they are in this program's memory.
		_ = connection.SetWriteBuffer(1) // the kernel's least, six answers; the process may have gone
		c.mu.Lock()
		welcome := c.clients != nil && len(c.clients) < mostClients
		if welcome {
			c.clients[connection] = true
			c.waits.Go(func() { c.talk(connection) })
		}
		c.mu.Unlock()
		if !welcome {
			c.leave(connection, func() {}) // the process sees it
		}
		if c.closed() {
			c.away(c.listener)
			return
		}
		c.pace.step()
	}
}

// closed says whether the container's turns have ended.
func (c *container) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clients == nil
}

// end ends the container's turns, and waits until nobody uses them.
func (c *container) end() {
	c.mu.Lock()
	clients := c.clients
	c.clients = nil
	c.mu.Unlock()
	_ = c.listener.SetDeadline(time.Unix(1, 0)) // serve closes it
	for connection := range clients {
		shut(connection)
	}
	c.waits.Wait()
	for _, s := range c.stands {
		s.gpu.remove(s.member)
	}
}

// banish ends the container's turns without waiting.
func (c *container) banish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for connection := range c.clients {
		shut(connection)
	}
	c.clients = nil
	_ = c.listener.SetDeadline(time.Unix(1, 0)) // serve closes it
}

// leave closes a connection, and calls then once that is done.
func (c *container) leave(connection *net.UnixConn, then func()) {
	shut(connection)
	if c.closer != nil && hasRights(connection) {
		c.banish()
		c.away(connection)
		return
	}
	_ = connection.Close()
	then()
}

// away closes what a process may have sent file descriptors to.
func (c *container) away(what io.Closer) {
	if c.closer != nil {
		c.closer.close(what)
		return
	}
	_ = what.Close() // it is of no use any more
}

// talk serves a process until its connection ends. A packet that makes no sense ends it too.
func (c *container) talk(connection *net.UnixConn) {
	defer c.leave(connection, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.clients, connection)
	})
	buffer := make([]byte, packet+1)
	kind, _, err := c.receive(connection, buffer)
	if err != nil || kind != hello {
		return
	}
	uuid, _, _ := strings.Cut(string(buffer[16:packet]), "\x00")
	s, known := c.stands[uuid]
	if !known {
		return
	}
	process := &client{send: func(kind uint32, length time.Duration) {
		answer := make([]byte, packet)
		binary.NativeEndian.PutUint32(answer, kind)
		binary.NativeEndian.PutUint64(answer[8:], uint64(length)) //nolint:gosec // a turn
		// At once, without another goroutine, whose start a GPU that is free would wait for. It never waits.
		if !send(connection, answer) {
			shut(connection) // it asks, and does not listen
		}
	}}
	s.gpu.join(s.member, process)
	defer s.gpu.leave(process)
	for {
		kind, length, err := c.receive(connection, buffer)
		s.pace.step()
		switch {
		case err != nil:
			return
		case kind == want:
			s.gpu.want(process)
		case kind == more:
			s.gpu.more(process)
		case kind == done:
			s.gpu.done(process, length)
		default:
			return
		}
	}
}

// errPacket marks a packet of another size.
var errPacket = errors.New("no packet of a process that asks for its turns")

func (c *container) receive(connection *net.UnixConn, buffer []byte) (kind uint32, length time.Duration, err error) {
	if c.closer != nil {
		if err := withoutRights(connection); err != nil {
			return 0, 0, err
		}
	}
	n, err := connection.Read(buffer)
	if err == nil && n != packet {
		err = errPacket
	}
	if err != nil {
		return 0, 0, err
	}
	return binary.NativeEndian.Uint32(buffer), time.Duration(binary.NativeEndian.Uint64(buffer[8:])), nil //nolint:gosec // done looks at it
}
