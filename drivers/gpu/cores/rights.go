package cores

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A process may send file descriptors beside a packet (unix(7), SCM_RIGHTS). The kernel then closes them in the program that reads the
// packet, or that closes the connection with the packet unread. Such a close may last as long as the process wishes: that of a TCP
// connection that lingers, or of a file of a server that does not answer. A thread of this program would wait in each, and a Go program
// ends when it has 10,000 threads (runtime/debug.SetMaxThreads).
//
// So no descriptors are taken where the kernel can be told that (Linux 6.16, SO_PASSRIGHTS). Elsewhere a packet is looked at before it is
// read. A container that sends descriptors has no turns any more, and its sockets are left to a single goroutine, which closes such sockets
// one after the other.

// errRights marks a packet with file descriptors.
var errRights = errors.New("a packet with file descriptors, of which this program takes none")

// refuseRights has the kernel refuse packets with file descriptors, on a socket and on all connections to it. It returns false where the
// kernel is too old for that.
func refuseRights(raw syscall.RawConn) (refused bool) {
	failed := raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil //nolint:gosec // a descriptor
	})
	return failed == nil && refused
}

// peek looks at the next packet and leaves it there. A peek takes no descriptors, and says whether the packet has any (MSG_CTRUNC).
func peek(fd uintptr, control []byte) (bytes int, err error) {
	var first [1]byte
	_, bytes, flags, _, err := unix.Recvmsg(int(fd), first[:], control, unix.MSG_PEEK|unix.MSG_DONTWAIT) //nolint:gosec // a descriptor
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errRights
	}
	return bytes, err
}

// withoutRights waits for a packet, and returns an error where it has file descriptors. The packet stays there.
func withoutRights(connection *net.UnixConn) error {
	raw, err := connection.SyscallConn()
	if err != nil {
		return err
	}
	var has error
	err = raw.Read(func(fd uintptr) (done bool) {
		_, has = peek(fd, nil)
		return !errors.Is(has, unix.EAGAIN)
	})
	return errors.Join(err, has)
}

// hasRights says whether one of the packets that were not read yet has file descriptors. It removes those before it. Nothing may be sent
// on the connection any more. A process's unread packets are bounded by the memory that it may have for them (SO_SNDBUF).
func hasRights(connection *net.UnixConn) (has bool) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		socket := int(fd) //nolint:gosec // a descriptor
		// A packet, which may be empty, has its sender's credentials now. The end has none.
		if has = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) != nil; has {
			return // who knows
		}
		credentials := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
		for {
			bytes, err := peek(fd, credentials)
			if has = errors.Is(err, errRights); has || err != nil || bytes == 0 {
				return
			}
			var first [1]byte
			if _, err := unix.Read(socket, first[:]); err != nil {
				return
			}
		}
	})
	return has
}

// shut ends what can be sent on a connection, and whoever waits to read of it. What is there already can still be read.
func shut(connection *net.UnixConn) {
	if raw, err := connection.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) //nolint:gosec // a descriptor
	}
	_ = connection.SetReadDeadline(time.Unix(1, 0)) // it is open
}

// send sends a packet, unless too many wait there.
func send(connection *net.UnixConn, packet []byte) (sent bool) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == nil //nolint:gosec // a descriptor
	})
	return sent
}

// closer closes what may take long to close, one after the other. What is left when the program ends, the kernel closes.
type closer struct {
	mu   sync.Mutex
	left []io.Closer
}

func (c *closer) close(what io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left = append(c.left, what); len(c.left) > 1 {
		return // one is being closed
	}
	go func() {
		for next := what; next != nil; next = c.after() {
			_ = next.Close() // nobody uses it any more
		}
	}()
}

// after removes the one that was closed, and returns the next one.
func (c *closer) after() io.Closer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left = c.left[1:]; len(c.left) == 0 {
		return nil
	}
	return c.left[0]
}
