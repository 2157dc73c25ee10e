package drain

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/node/filewatch"
)

func directory(t *testing.T) Directory {
	t.Helper()
	return Directory{Path: filepath.Join(t.TempDir(), "drain"), Files: &filewatch.Watcher{Interval: 20 * time.Millisecond}}
}

// run runs a member and shows its uses of NVML in the channel: true when one begins, false when it has closed NVML.
func run(t *testing.T, d Directory, role string, stands <-chan struct{}) (uses chan bool, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	uses, ended := make(chan bool, 10), make(chan error, 1)
	go func() {
		ended <- Member{Directory: d, Role: role}.Run(ctx, func(ctx context.Context, s *Session) error {
			uses <- true
			if !s.Await(ctx, true) {
				return nil
			}
			s.Record(ctx, "pod default/train has a GPU")
			select {
			case <-stands:
			case <-ctx.Done():
				return nil
			}
			uses <- false
			return ErrDrained
		})
	}()
	var once bool
	end = func() error {
		if once {
			return nil
		}
		once = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = end() })
	return uses, end
}

func expect(t *testing.T, uses chan bool, want bool) {
	t.Helper()
	select {
	case got := <-uses:
		if got != want {
			t.Fatalf("NVML open: %v, want %v", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("NVML is not open: %v", want)
	}
}

// holders waits until the roles that hold NVML are as wanted.
func holders(t *testing.T, d Directory, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes, err := d.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for {
		all, err := d.Blockers()
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for _, h := range all {
			words = append(words, h.String())
		}
		got := strings.Join(words, "; ")
		if got == want || want != "" && strings.HasPrefix(got, want) {
			return
		}
		select {
		case <-changes:
		case <-ctx.Done():
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestMemberReleasesForDrainAndReturns(t *testing.T) {
	d := directory(t)
	stands := make(chan struct{}, 2)
	uses, _ := run(t, d, "vgpu-plugin", stands)
	expect(t, uses, true)
	holders(t, d, "vgpu-plugin: NVML is open")
	if err := d.Set(Draining); err != nil {
		t.Fatal(err)
	}
	holders(t, d, "vgpu-plugin: pod default/train has a GPU")
	stands <- struct{}{}
	expect(t, uses, false)
	holders(t, d, "")
	if err := d.Set(Drained); err != nil {
		t.Fatal(err)
	}
	// Another process of the role, as after a restart, does not open NVML.
	second, end := run(t, d, "vgpu-plugin", stands)
	select {
	case <-second:
		t.Error("a role that was started on a drained node opened NVML")
	case <-uses:
		t.Error("a role opened NVML on a drained node")
	case <-time.After(100 * time.Millisecond):
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if err := d.Set(None); err != nil {
		t.Fatal(err)
	}
	expect(t, uses, true)
}

func TestDrainWaitsForRoleThatEndedWithGPUs(t *testing.T) {
	d := directory(t)
	stands := make(chan struct{}, 1)
	uses, end := run(t, d, "vgpu-plugin", stands)
	expect(t, uses, true)
	if err := d.Set(Draining); err != nil {
		t.Fatal(err)
	}
	holders(t, d, "vgpu-plugin: pod default/train")
	if err := end(); err != nil { // a killed process leaves the same: the file's text, and no lock
		t.Fatal(err)
	}
	holders(t, d, "vgpu-plugin ended while pod default/train has a GPU: start it again, and it closes NVML; "+
		"if it is uninstalled, remove "+d.Path)
	again, _ := run(t, d, "vgpu-plugin", stands)
	expect(t, again, true)
	stands <- struct{}{}
	expect(t, again, false)
	holders(t, d, "")
}

func TestDrainInterruptsRolesWithoutClaims(t *testing.T) {
	d := directory(t)
	interrupted := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Member{Directory: d, Role: "vgpu-monitor"}.Run(ctx, func(ctx context.Context, s *Session) error {
			turn, stop := s.Interrupted(ctx)
			defer stop()
			<-turn.Done()
			interrupted <- context.Cause(turn)
			return context.Cause(turn)
		})
	}()
	holders(t, d, "vgpu-monitor: NVML is open")
	if err := d.Set(Draining); err != nil {
		t.Fatal(err)
	}
	if err := <-interrupted; !errors.Is(err, ErrDrained) {
		t.Errorf("ended with %v", err)
	}
	holders(t, d, "")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestMemberRunsWithoutDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := Directory{Path: filepath.Join(file, "drain"), Files: &filewatch.Watcher{}}
	called := false
	use := func(context.Context, *Session) error {
		called = true
		return nil
	}
	if err := (Member{Directory: d, Role: "vgpu-plugin"}).Run(t.Context(), use); err != nil || !called {
		t.Errorf("called: %v, error %v", called, err)
	}
}

func TestReadTreatsDamagedPhaseAsDrained(t *testing.T) {
	d := directory(t)
	for text, want := range map[string]Phase{"draining\n": Draining, "drained": Drained, "": Drained, "dra": Drained, "\x00\xff": Drained} {
		if err := os.MkdirAll(d.Path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Path, "phase"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		known := strings.HasPrefix(text, "drain")
		if got, err := d.Phase(); got != want || (err == nil) != known || err != nil && !strings.Contains(err.Error(), "gpufabric undrain") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	if err := d.Set(None); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Phase(); got != None || err != nil {
		t.Errorf("after an undrain: %q, %v", got, err)
	}
}
