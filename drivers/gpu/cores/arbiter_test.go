//shows:vgpu-limits
package cores

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/gpu/limiter"
)

const (
	uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	name = "0a1b2c3d-uid_main"
)

// dialled is a process of a container, by its socket.
type dialled struct {
	*net.UnixConn
	t *testing.T
}

func dial(t *testing.T, a *Arbiter) dialled {
	t.Helper()
	link := filepath.Join(t.TempDir(), "turns") // shorter than the directory's own path may be
	if err := os.Symlink(a.Path(name), link); err != nil {
		t.Fatal(err)
	}
	return dialAt(t, link)
}

func (d dialled) say(kind uint32, gpu string) {
	d.t.Helper()
	buffer := make([]byte, packet)
	binary.NativeEndian.PutUint32(buffer, kind)
	copy(buffer[16:], gpu)
	if _, err := d.Write(buffer); err != nil {
		d.t.Fatal(err)
	}
}

// hear returns the kind of an answer and the length of a turn; kind 0: the connection was closed.
func (d dialled) hear() (kind uint32, length time.Duration) {
	d.t.Helper()
	buffer := make([]byte, packet)
	if _, err := d.Read(buffer); errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) { // reset: it had not read all

		return 0, 0
	} else if err != nil {
		d.t.Fatal(err)
	}
	return binary.NativeEndian.Uint32(buffer), time.Duration(binary.NativeEndian.Uint64(buffer[8:])) //nolint:gosec // a turn
}

func opened(t *testing.T) *Arbiter {
	t.Helper()
	a := &Arbiter{Directory: filepath.Join(t.TempDir(), strings.Repeat("long", 20), "turns"), Lend: true}
	t.Cleanup(a.Stop)
	if err := a.Open(name, limits()); err != nil {
		t.Fatal(err)
	}
	return a
}

func limits() []limiter.Limit { return []limiter.Limit{{UUID: uuid, Cores: 50}, {UUID: "GPU-whole"}} }

func TestAProcessHasItsTurnAndIsCharged(t *testing.T) {
	a := opened(t)
	first, second := dial(t, a), dial(t, a)
	for _, d := range []dialled{first, second} {
		d.say(hello, uuid)
		d.say(want, "")
		if d == first {
			if kind, length := d.hear(); kind != grant || length != turn {
				t.Fatalf("answer %d, %s", kind, length)
			}
		}
	}
	second.say(want, "")
	if kind, _ := second.hear(); kind != wait {
		t.Errorf("one that asks again is answered %d", kind)
	}
	// The first dies. The second has its turn.
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if kind, _ := second.hear(); kind != grant {
		t.Errorf("answer %d, want a turn", kind)
	}
	second.say(more, "")
	if kind, _ := second.hear(); kind != grant {
		t.Errorf("nobody else wants the GPU, and the answer is %d", kind)
	}
	used := a.Used()
	if len(used) != 1 || used[0].PodUID != "0a1b2c3d-uid" || used[0].Container != "main" || used[0].UUID != uuid {
		t.Errorf("used: %+v", used)
	}
}

func TestWhoMakesNoSenseIsCutOff(t *testing.T) {
	a := opened(t)
	for what, say := range map[string]func(dialled){
		"another's GPU":     func(d dialled) { d.say(hello, "GPU-bbbbbbbb-4e5f-6071-8293-a4b5c6d7e8f9") },
		"one without limit": func(d dialled) { d.say(hello, "GPU-whole") },
		"no hello":          func(d dialled) { d.say(want, "") },
		"an unknown kind":   func(d dialled) { d.say(hello, uuid); d.say(99, "") },
		"an answer":         func(d dialled) { d.say(hello, uuid); d.say(grant, "") },
		"a short packet":    func(d dialled) { _, _ = d.Write([]byte("x")) },
		"a packet too long": func(d dialled) { _, _ = d.Write(make([]byte, 4096)) },
	} {
		d := dial(t, a)
		say(d)
		if kind, _ := d.hear(); kind != 0 {
			t.Errorf("%s: answer %d", what, kind)
		}
	}
	d := dial(t, a)
	d.say(hello, uuid)
	d.say(want, "")
	if kind, _ := d.hear(); kind != grant {
		t.Errorf("answer %d to one that makes sense", kind)
	}
}

func TestTurnsGoOnAfterARestart(t *testing.T) {
	a := opened(t)
	before := dial(t, a)
	before.say(hello, uuid)
	if err := os.MkdirAll(a.Path("gone_main"), 0o755); err != nil {
		t.Fatal(err)
	}
	a.Stop()
	if kind, _ := before.hear(); kind != 0 {
		t.Errorf("answer %d of an arbiter that ended", kind)
	}
	b := &Arbiter{Directory: a.Directory}
	t.Cleanup(b.Stop)
	b.Resume(t.Context(), func(of string) ([]limiter.Limit, error) {
		if of != name {
			return nil, fs.ErrNotExist
		}
		return limits(), nil
	})
	after := dial(t, b)
	after.say(hello, uuid)
	after.say(want, "")
	if kind, _ := after.hear(); kind != grant {
		t.Errorf("answer %d after a restart", kind)
	}
	if _, err := os.Stat(b.Path("gone_main")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a pod that is gone stays (%v)", err)
	}
	if err := b.Close(name); err != nil {
		t.Fatal(err)
	}
	if kind, _ := after.hear(); kind != 0 {
		t.Errorf("answer %d to a container that is gone", kind)
	}
	if entries, err := os.ReadDir(b.Directory); err != nil || len(entries) != 0 {
		t.Errorf("left: %v (%v)", entries, err)
	}
}
