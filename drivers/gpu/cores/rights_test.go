//shows:vgpu-limits
package cores

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/gpu/limiter"
)

// slow makes file descriptors whose last close waits for an hour, or until the test ends: a TCP connection that lingers, whose peer does
// not read, is on its way over a Unix socket that nobody has any more. A descriptor of that socket is what counts. drop closes this
// test's own, which may be the last.
func slow(t *testing.T) (fd int, drop func()) {
	t.Helper()
	var closed sync.WaitGroup
	t.Cleanup(closed.Wait) // after the peer's end
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	connection, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() }) // with unread bytes: that resets the connection, which ends the wait
	file, err := connection.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	lingers := int(file.Fd())
	if err := unix.SetNonblock(lingers, true); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = unix.Write(lingers, make([]byte, 1<<20))
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(lingers), nil, 0); err != nil {
		t.Fatal(err)
	}
	// This program's own descriptors of it are closed before it lingers.
	if err := errors.Join(unix.SetsockoptLinger(lingers, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}),
		file.Close(), connection.Close(), unix.Close(pair[0])); err != nil {
		t.Fatal(err)
	}
	return pair[1], func() {
		closed.Go(func() {
			if err := unix.Close(pair[1]); err != nil {
				t.Error(err)
			}
		})
	}
}

// threads is how many threads this program has.
func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Containers send descriptors whose close takes an hour. Neither the arbiter nor the containers' ends wait for them, whichever packet has
// them and whether it is read.
//
//attack:cores-descriptors A tenant sends the arbiter of turns file descriptors whose close lasts an hour, to use up the plugin's threads
func TestDescriptorsThatAreSentStopNobody(t *testing.T) {
	for name, old := range map[string]bool{"a kernel that refuses descriptors": false, "an older kernel": true} {
		t.Run(name, func(t *testing.T) {
			a := opened(t)
			a.takesRights = old
			const many = 40
			var hostile []string
			var all []dialled
			for i := range many {
				hostile = append(hostile, fmt.Sprintf("hostile-uid-%d_main", i))
				if err := a.Open(hostile[i], limits()); err != nil {
					t.Fatal(err)
				}
				all = append(all, dialTo(t, a, hostile[i]))
			}
			if !old && a.containers[hostile[0]].closer != nil {
				t.Skip("skipped: this kernel is older than Linux 6.16, and cannot refuse file descriptors (SO_PASSRIGHTS)")
			}
			before, refused := threads(t), 0
			for i, d := range all {
				fd, drop := slow(t)
				if err := d.sendRights(i, fd); err != nil {
					refused++
					t.Cleanup(drop) // the test has the only one, and would wait for it
					continue
				}
				drop()
			}
			if want := many * 3 / 4; !old && refused < want || old && refused > many-want {
				t.Errorf("%d of %d packets with descriptors could not be sent", refused, many)
			}
			for i := 0; old && i < many; i++ {
				if kind, _ := all[i].hear(); kind != 0 {
					t.Errorf("container %d, which sent descriptors, is answered %d", i, kind)
				}
			}
			ends := make(chan error, 1)
			go func() {
				for _, name := range hostile {
					ends <- a.Close(name)
				}
				close(ends)
			}()
			late := time.After(time.Minute)
			for range hostile {
				select {
				case err := <-ends:
					if err != nil {
						t.Error(err)
					}
				case <-late:
					t.Fatal("the end of a container waits for the descriptors that it sent")
				}
			}
			if more := threads(t) - before; more > many/2 {
				t.Errorf("%d more threads, where %d containers sent descriptors", more, many)
			}
			honest := dial(t, a)
			honest.say(hello, uuid)
			honest.say(want, "")
			if kind, _ := honest.hear(); kind != grant {
				t.Errorf("another container is answered %d", kind)
			}
			t.Logf("attacker sees: %d of %d packets refused; after the others its connections end, and it has no more turns", refused, many)
		})
	}
}

// sendRights sends a file descriptor, in one of several ways.
func (d dialled) sendRights(way, fd int) error {
	sent := make([]byte, packet)
	switch way % 4 {
	case 0: // with the first packet
		sent[0] = byte(hello)
		copy(sent[16:], uuid)
	case 1: // behind a packet that makes no sense, and is the last that is read
		_, _ = d.Write([]byte("x"))
	case 2: // behind an empty one
		_, _ = d.Write(nil)
	case 3: // with an empty one
		sent = nil
	}
	_, _, err := d.WriteMsgUnix(sent, unix.UnixRights(fd), nil)
	return err
}

// The monitor sees vgpu-plugin's directories, and has no capability.
//
//attack:cores-monitor A tenant who has taken the monitor over asks for turns on a GPU in other containers' names
func TestOnlyAContainerReachesItsSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: only root has the capability that the directory asks for")
	}
	a := opened(t)
	link := filepath.Join(t.TempDir(), "turns")
	if err := os.Symlink(a.Path(name), link); err != nil {
		t.Fatal(err)
	}
	seen := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends, without its capabilities
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&head, &none[0]); err != nil {
			seen <- err
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(link, socket)}), unix.Close(fd))
		}
		seen <- err
	}()
	err := <-seen
	if !errors.Is(err, unix.EACCES) {
		t.Errorf("without capabilities, root connects to another's socket: %v", err)
	}
	t.Logf("attacker sees: %v", err)
	d := dialAt(t, link) // the container's own mount leads there without the way
	d.say(hello, uuid)
	d.say(want, "")
	if kind, _ := d.hear(); kind != grant {
		t.Errorf("answer %d", kind)
	}
}

// dialTo connects to a container's socket.
func dialTo(t *testing.T, a *Arbiter, name string) dialled {
	t.Helper()
	link := fmt.Sprintf("%s/turns", t.TempDir())
	if err := os.Symlink(a.Path(name), link); err != nil {
		t.Fatal(err)
	}
	return dialAt(t, link)
}

// What waits for a process that does not listen is in this program's memory.
//
//attack:cores-deaf A tenant asks the arbiter of turns again and again and reads no answer, to fill the plugin's memory
func TestOneThatDoesNotListenHasFewAnswersWaiting(t *testing.T) {
	a := opened(t)
	holder, d := dial(t, a), dial(t, a)
	for _, each := range []dialled{holder, d} {
		each.say(hello, uuid)
		each.say(want, "")
	}
	question := make([]byte, packet)
	question[0] = byte(want)
	for range 10_000 {
		if _, err := d.Write(question); err != nil {
			break // the arbiter has had enough
		}
	}
	count := 0
	for kind, _ := d.hear(); kind != 0; kind, _ = d.hear() {
		count++
	}
	if most := 16; count > most {
		t.Errorf("%d answers waited for one that did not listen", count)
	}
	t.Logf("attacker sees: its connection ends once %d answers wait", count)
}

// Whoever has a container's connection shares its percentage: two containers of a tenant that pass one on have no more together.
//
//attack:cores-passed A container hands its connection to the arbiter of turns to another one, to have turns beyond its own percentage
func TestAConnectionThatIsPassedOnCountsAsItsContainers(t *testing.T) {
	a := opened(t)
	const other = "other-uid_main"
	if err := a.Open(other, []limiter.Limit{{UUID: uuid, Cores: 10}}); err != nil {
		t.Fatal(err)
	}
	passed := dial(t, a) // and used by the other container from now on
	passed.say(hello, uuid)
	passed.say(want, "")
	if kind, _ := passed.hear(); kind != grant {
		t.Fatalf("answer %d", kind)
	}
	passed.say(done, "")
	passed.say(want, "")
	if kind, _ := passed.hear(); kind != grant {
		t.Fatalf("answer %d", kind)
	}
	charged := map[string]time.Duration{}
	for name, c := range a.containers {
		s := c.stands[uuid]
		s.gpu.share(s.member)
		s.gpu.mu.Lock()
		charged[name] = s.member.used
		s.gpu.mu.Unlock()
	}
	if charged[name] == 0 || charged[other] != 0 {
		t.Errorf("charged: %v", charged)
	}
}

func FuzzPackets(f *testing.F) {
	seed := func(kinds ...uint32) []byte {
		var all bytes.Buffer
		for _, kind := range kinds {
			packet := make([]byte, packet)
			packet[0] = byte(kind)
			copy(packet[16:], uuid)
			all.Write(packet)
		}
		return all.Bytes()
	}
	f.Add(seed(hello, want, more, done, want), uint16(packet))
	f.Add(seed(hello, want, want, want), uint16(packet))
	f.Add(seed(want), uint16(packet))
	f.Add(seed(hello, 99), uint16(packet))
	f.Add(seed(hello, hello, grant, closed, wait), uint16(packet))
	f.Add(seed(hello, done, more, want), uint16(63))
	f.Add([]byte{}, uint16(1))
	f.Fuzz(func(t *testing.T, sent []byte, size uint16) {
		a := &Arbiter{Directory: t.TempDir(), Lend: size%2 == 0}
		t.Cleanup(a.Stop)
		const other = "other-uid_main"
		for _, name := range []string{name, other} {
			if err := a.Open(name, limits()); err != nil {
				t.Fatal(err)
			}
		}
		d := dial(t, a)
		for len(sent) > 0 {
			n := min(len(sent), int(size)+1)
			if _, err := d.Write(sent[:n]); err != nil {
				break // cut off
			}
			sent = sent[n:]
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		// Whatever it said, it is gone, and another has its turn.
		honest := dialTo(t, a, other)
		honest.say(hello, uuid)
		honest.say(want, "")
		if kind, length := honest.hear(); kind != grant || length != turn {
			t.Fatalf("another container is answered %d, %s", kind, length)
		}
		for _, s := range a.containers[name].stands {
			s.gpu.mu.Lock()
			if s.member.used < 0 || s.member.use < 0 {
				t.Errorf("charged %s, %g", s.member.used, s.member.use)
			}
			s.gpu.mu.Unlock()
		}
	})
}
