package state_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

func create(t testing.TB, name string) (root string, f *state.File) {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	if err := state.CreateNode(root, p.Node(0)); err != nil {
		t.Fatal(err)
	}
	f, err = state.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return root, f
}

func TestUpdateDoesNotChangeStateWhenRefused(t *testing.T) {
	_, f := create(t, "gb200-nvl72")
	refused := errors.New("no")
	err := f.Update(func(b *state.Body) error {
		b.GPUs[0].Core.Temperature = 99
		return refused
	})
	if !errors.Is(err, refused) {
		t.Fatal(err)
	}
	b, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	if b.GPUs[0].Core.Temperature == 99 || f.Sequence() != 0 {
		t.Errorf("temperature %d, sequence %d", b.GPUs[0].Core.Temperature, f.Sequence())
	}
}

// TestReadersNeverSeeHalfAnUpdate lets writers keep two numbers equal, through two mappings of the file, while readers compare
// them.
func TestReadersNeverSeeHalfAnUpdate(t *testing.T) {
	root, f := create(t, "h100-hgx")
	g, err := state.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	writes := make([]uint32, 2)
	for i, file := range []*state.File{f, g} {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := file.Update(func(b *state.Body) error {
					b.GPUs[0].Core.Temperature++
					b.GPUs[7].Core.Temperature = b.GPUs[0].Core.Temperature
					return nil
				}); err != nil {
					t.Error(err)
				}
				writes[i]++
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				b, err := file.Read()
				if err != nil {
					t.Error(err)
					return
				}
				if a, z := b.GPUs[0].Core.Temperature, b.GPUs[7].Core.Temperature; a != z && z != 28 {
					t.Errorf("first %d, last %d", a, z)
					return
				}
			}
		})
	}
	wg.Wait()
	b, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.GPUs[0].Core.Temperature, 28+writes[0]+writes[1]; got != want {
		t.Errorf("%d updates were lost", want-got)
	}
}

func TestEventsArriveInOrderAndOnce(t *testing.T) {
	_, f := create(t, "gb200-nvl72")
	for i := range 5 {
		if err := f.Post(state.Event{Type: 8, Data: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var after uint64
	for i := range 5 {
		e, err := f.Next(t.Context(), after)
		if err != nil || e.Data != uint64(i) || e.Number != uint64(i+1) {
			t.Fatalf("%+v %v", e, err)
		}
		after = e.Number
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if e, err := f.Next(ctx, after); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v %v", e, err)
	}
}

func TestReaderThatIsSlowGetsTheOldestEvents(t *testing.T) {
	_, f := create(t, "gb200-nvl72")
	for i := range state.EventRing + 10 {
		if err := f.Post(state.Event{Type: 8, Data: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	e, err := f.Next(t.Context(), 0)
	if err != nil || e.Data != 10 {
		t.Errorf("%+v %v", e, err)
	}
}

func TestReaderDetectsAReplacedFile(t *testing.T) {
	root, f := create(t, "gb200-nvl72")
	done := make(chan error)
	go func() {
		_, err := f.Next(t.Context(), 0)
		done <- err
	}()
	p, err := profile.Load("t4-edge")
	if err != nil {
		t.Fatal(err)
	}
	if err := state.CreateNode(root, p.Node(0)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, state.ErrReplaced) {
		t.Errorf("a waiter on the old file: %v", err)
	}
	if !f.Replaced() {
		t.Error("the old file does not know")
	}
}

func TestReaderRejectsADamagedFile(t *testing.T) {
	root, _ := create(t, "gb200-nvl72")
	whole, err := os.ReadFile(state.Path(root))
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func([]byte) []byte{
		"empty":           func([]byte) []byte { return nil },
		"cut short":       func(b []byte) []byte { return b[:len(b)/2] },
		"another version": func(b []byte) []byte { binary.NativeEndian.PutUint32(b[8:], 99); return b },
		"another magic":   func(b []byte) []byte { b[0] = 'x'; return b },
		"too many GPUs":   func(b []byte) []byte { binary.NativeEndian.PutUint32(b[24:], 4000); return b },
	} {
		t.Run(name, func(t *testing.T) {
			other := t.TempDir()
			if err := os.MkdirAll(filepath.Dir(state.Path(other)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(state.Path(other), damage(append([]byte(nil), whole...)), 0o644); err != nil {
				t.Fatal(err)
			}
			if f, err := state.Open(other); err == nil {
				t.Errorf("it opens; close: %v", f.Close())
			}
		})
	}
}

func TestReaderRejectsATruncatedFile(t *testing.T) {
	root, f := create(t, "gb200-nvl72")
	if err := os.Truncate(state.Path(root), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(); err == nil {
		t.Error("it was read")
	}
}

func TestWriterLeavesTheStateCompleteWhenKilled(t *testing.T) {
	root, f := create(t, "gb200-nvl72")
	// The child is this test binary. It dies inside an update while it holds the lock.
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "TestMain")
	cmd.Env = append(os.Environ(), "STATE_TEST_DIE_IN="+root)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Fatalf("the child did not die:\n%s", out)
	}
	b, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	if b.GPUs[0].Core.Temperature != 37 {
		t.Errorf("temperature %d", b.GPUs[0].Core.Temperature)
	}
	if err := f.Update(func(b *state.Body) error { b.GPUs[0].Core.Temperature = 50; return nil }); err != nil {
		t.Errorf("the next writer: %v", err)
	}
}

func TestMain(m *testing.M) {
	if root := os.Getenv("STATE_TEST_DIE_IN"); root != "" {
		f, err := state.Open(root)
		if err != nil {
			os.Exit(0)
		}
		_ = f.Update(func(b *state.Body) error {
			b.GPUs[0].Core.Temperature = 77
			os.Exit(3)
			return nil
		})
	}
	os.Exit(m.Run())
}

func TestDelaysAddUpAndEnd(t *testing.T) {
	var n state.Node
	for _, s := range []struct {
		function string
		d        time.Duration
	}{{"nvmlDeviceGetName", time.Second}, {state.AnyFunction, time.Millisecond}} {
		if err := n.SetDelay(s.function, s.d); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.Delay("nvmlDeviceGetName"); got != time.Second+time.Millisecond {
		t.Error(got)
	}
	if got := n.Delay("nvmlDeviceGetUUID"); got != time.Millisecond {
		t.Error(got)
	}
	if err := n.SetDelay("nvmlDeviceGetName", 0); err != nil || n.Delay("nvmlDeviceGetName") != time.Millisecond {
		t.Error(err, n.Delay("nvmlDeviceGetName"))
	}
	for i := range state.MaxDelays - 1 {
		if err := n.SetDelay(string(rune('a'+i)), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.SetDelay("one too many", 1); err == nil {
		t.Error("there is no limit")
	}
}

func FuzzStateFileDoesNotCrash(f *testing.F) {
	root, _ := create(f, "a100-40")
	whole, err := os.ReadFile(state.Path(root))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), []byte{}, 0)
	f.Add(uint16(24), []byte{255, 255, 255, 255}, 0)
	f.Add(uint16(60000), []byte{1, 2, 3}, 100)
	f.Fuzz(func(t *testing.T, at uint16, bytes []byte, cut int) {
		damaged := append([]byte(nil), whole...)
		copy(damaged[int(at)*4%len(damaged):], bytes)
		damaged = damaged[:len(damaged)-min(max(cut, 0), len(damaged))]
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(state.Path(dir)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(state.Path(dir), damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		file, err := state.Open(dir)
		if err != nil {
			return
		}
		defer func() { _ = file.Close() }()
		b, err := file.Read()
		if err != nil {
			return
		}
		for _, g := range b.GPUs {
			b.Sweep(g)
		}
		_ = b.Node.Delay("nvmlInit_v2")
	})
}
