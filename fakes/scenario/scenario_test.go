package scenario_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/scenario"
	"gpufabric.io/fakes/tree"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }

const storm = `seed: 11
events:
  - {at: 1s, every: 2s, times: 5, jitter: 900ms, inject: xid, with: {gpu: "any: 0,1,2,3", code: "31"}}
  - {at: 2s, inject: port-down, with: {device: mlx5_0}}
  - {at: 3s, inject: port-down, with: {device: mlx5_0}}
  - {at: 4s, inject: temp, with: {gpu: 0, celsius: 88}}
`

func play(t *testing.T, text string) string {
	t.Helper()
	p, err := profile.Load("gb200-nvl72")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "node")
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	steps, err := scenario.Parse("storm.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if err := scenario.Play(t.Context(), root, steps, scenario.RealTime(0), &log); err != nil {
		t.Fatal(err)
	}
	return log.String()
}

func TestScenarioGivesTheSameLog(t *testing.T) {
	first := play(t, storm)
	if second := play(t, storm); second != first {
		t.Errorf("first:\n%s\nsecond:\n%s", first, second)
	}
	if strings.Count(first, "xid") != 5 || !strings.Contains(first, "3.000s  port-down device=mlx5_0: port-down: refused") {
		t.Error(first)
	}
	if other := play(t, strings.Replace(storm, "seed: 11", "seed: 12", 1)); other == first {
		t.Error("another seed gives the same log")
	}
}

func TestJitterDelaysEachEventByLessThanItself(t *testing.T) {
	steps, err := scenario.Parse("storm.yaml", []byte(storm))
	if err != nil {
		t.Fatal(err)
	}
	at, late := time.Second, 0
	for _, s := range steps {
		if s.Event != "xid" {
			continue
		}
		if delay := s.At - at; delay < 0 || delay >= 900*time.Millisecond {
			t.Errorf("%v after %v; want less than 900ms", delay, at)
		} else if delay > 0 {
			late++
		}
		at += 2 * time.Second
	}
	if late != 5 {
		t.Errorf("%d of the five are delayed; want each, with this seed", late)
	}
}

func TestMistakesInAScenarioAreNamedWithTheirLines(t *testing.T) {
	_, err := scenario.Parse("s.yaml", []byte("events:\n  - {at: soon, inject: xid}\n  - {at: 1s, inject: earthquake}\n  - {at: 1s, "+
		"inject: xid, times: 3}\n"+
		"  - {at: 1s, inject: temp, with: {gpu: 0, kelvin: 88}}\n"))
	for _, want := range []string{"s.yaml:5: events[3].with: celsius is missing", `takes no argument "kelvin"`, "s.yaml:2: events[0].at",
		"s.yaml:3: events[1].inject", "events[2].every: is missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if _, err := scenario.Parse("s.yaml", []byte("events: []\nspeed: 3\n")); err == nil ||
		!strings.Contains(err.Error(), "s.yaml:2: speed: unknown key") {
		t.Error(err)
	}
}

func TestClockWaitsAndStops(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := scenario.RealTime(1)(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	begin := time.Now()
	if err := scenario.RealTime(100)(t.Context(), 3*time.Second); err != nil || time.Since(begin) < 29*time.Millisecond {
		t.Errorf("3 s at 100 times the speed took %v: %v", time.Since(begin), err)
	}
}
