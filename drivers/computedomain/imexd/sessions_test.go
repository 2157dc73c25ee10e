package imexd

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpufabric.io/drivers/computedomain/session"
	"gpufabric.io/drivers/hardware/imex"
)

// ends are the ended sessions of the supervisor's daemons.
func ends(t *testing.T, dir string) (record session.Record, why []string) {
	t.Helper()
	record, err := session.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range record.Ends {
		why = append(why, end.Why)
	}
	return record, why
}

func TestSessionsRecordEachEndWithItsCause(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.Join(two())
		pass(100 * time.Millisecond)
		if record, why := ends(t, s.spec.Dir); !record.Open || len(why) != 0 {
			t.Errorf("while the daemon runs: %+v", record)
		}
		r.newest(t, 1).die(errors.New("nvidia-imex ended: signal: killed"))
		pass(restartPause + time.Millisecond)
		r.newest(t, 2).become(imex.Ready)
		pass(time.Second)
		group := two()
		group.Slots = 36
		s.Join(group)
		pass(100 * time.Millisecond)
		r.newest(t, 3)
		record, why := ends(t, s.spec.Dir)
		if !record.Open || record.Session != 3 || len(why) != 2 || !strings.Contains(why[0], "signal: killed") ||
			!strings.Contains(why[1], "list of peers") {
			t.Errorf("after two ends: %+v", record)
		}
	})
}

func TestSessionsIgnoreADaemonThatDoesNotStart(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		r.err = errors.New("exec format error")
		s.Join(two())
		pass(time.Minute)
		if record, why := ends(t, s.spec.Dir); record.Open || len(why) != 0 {
			t.Errorf("%+v", record)
		}
	})
}

// A killed container does not record the end. The next supervisor does.
func TestSessionsEndWithTheSupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		spec, err := imex.NewSpec(dir, filepath.Join(dir, "hosts"), "10.0.0.1", 50000, 50005)
		if err != nil {
			t.Fatal(err)
		}
		s := NewSupervisor(&fakeRunner{}, spec, func(string, string) {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		s.Join(two())
		pass(100 * time.Millisecond)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if record, why := ends(t, dir); record.Open || len(why) != 1 || !strings.Contains(why[0], "pod ended") {
			t.Errorf("%+v", record)
		}
	})
}
