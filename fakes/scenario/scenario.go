// Package scenario plays a file of events on a fake node, on its own clock: the same file with the same seed gives the same log
// every time, at any speed.
package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/internal/strict"
)

// File is a scenario as written.
type File struct {
	// Seed drives everything random: jitter, and arguments with the value any.
	Seed   uint64  `yaml:"seed"`
	Events []Entry `yaml:"events" required:"true"`
}

// Entry is one event, or a series of them.
type Entry struct {
	// At is when the first one happens, counted from the start, e.g. 1m30s.
	At string `yaml:"at" required:"true"`
	// Times is how often it happens (0 and 1: once), Every the time between two.
	Times int    `yaml:"times" minimum:"0" maximum:"100000"`
	Every string `yaml:"every"`
	// Jitter delays each by a random time, from 0 up to this.
	Jitter string `yaml:"jitter"`
	// Inject is the event's name, With its arguments. An argument may list values to choose from at random: "any: 0,1,2".
	Inject string            `yaml:"inject" required:"true"`
	With   map[string]string `yaml:"with"`
}

// Step is one event with its time.
type Step struct {
	At    time.Duration
	Event string
	With  fault.Arguments
}

// mostMiB is the largest scenario file.
const mostMiB = 4

// Load reads a scenario file and computes the times of its events. It reports every mistake with its line.
func Load(path string) ([]Step, error) {
	data, err := strict.ReadFile(path, mostMiB)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	return Parse(path, data)
}

// Parse is Load for a file's contents; file is only used in messages.
func Parse(file string, data []byte) ([]Step, error) {
	var f File
	c := strict.Decode(file, data, &f)
	if err := c.Err(); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(f.Seed, 0))
	var steps []Step
	for i, e := range f.Events {
		steps = append(steps, e.steps(random, func(key, format string, args ...any) {
			c.At(fmt.Sprintf("events[%d].%s", i, key), format, args...)
		})...)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return steps, nil
}

const anyPrefix = "any: "

func (e Entry) steps(random *rand.Rand, wrong func(key, format string, args ...any)) []Step {
	duration := func(key, text string) time.Duration {
		if text == "" {
			return 0
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			wrong(key, "is %q; a time like 1m30s or 250ms is wanted", text)
		}
		return d
	}
	at, every, jitter := duration("at", e.At), duration("every", e.Every), duration("jitter", e.Jitter)
	if e.Times > 1 && every == 0 && e.Every == "" {
		wrong("every", "is missing; an event that happens %d times needs it", e.Times)
	}
	if kind, err := fault.Find(e.Inject); err != nil {
		wrong("inject", "%v", err)
	} else if err := kind.Check(e.With); err != nil {
		wrong("with", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	var steps []Step
	for k := range max(e.Times, 1) {
		s := Step{At: at + time.Duration(k)*every, Event: e.Inject, With: fault.Arguments{}}
		if jitter > 0 {
			s.At += time.Duration(random.Int64N(int64(jitter)))
		}
		for _, name := range slices.Sorted(maps.Keys(e.With)) {
			v := e.With[name]
			if choices, ok := strings.CutPrefix(v, anyPrefix); ok {
				list := strings.Split(choices, ",")
				v = strings.TrimSpace(list[random.IntN(len(list))])
			}
			s.With[name] = v
		}
		steps = append(steps, s)
	}
	return steps
}

// Clock waits until a time from the start of the play.
type Clock func(ctx context.Context, until time.Duration) error

// RealTime is a clock that runs speed times as fast as the wall's; speed 0 does not wait at all.
func RealTime(speed float64) Clock {
	begin := time.Now()
	return func(ctx context.Context, until time.Duration) error {
		if speed == 0 {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(float64(until)/speed) - time.Since(begin)):
			return nil
		}
	}
}

// Play applies the steps to the node under root and writes one line for each: the scenario's time, the event, its arguments and the
// result. A refused event is logged, and the play goes on; any other failure ends it.
func Play(ctx context.Context, root string, steps []Step, clock Clock, log io.Writer) error {
	for _, s := range steps {
		if err := clock(ctx, s.At); err != nil {
			return err
		}
		err := fault.Apply(root, s.Event, s.With)
		outcome := "done"
		if err != nil {
			outcome = err.Error()
		}
		if _, werr := fmt.Fprintf(log, "%10s  %s%s: %s\n", seconds(s.At), s.Event, arguments(s.With), outcome); werr != nil {
			return werr
		}
		if err != nil && !errors.Is(err, fault.ErrRefused) {
			return fmt.Errorf("at %s: %w", seconds(s.At), err)
		}
	}
	return nil
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) + "s"
}

func arguments(a fault.Arguments) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(a)) {
		fmt.Fprintf(&b, " %s=%s", name, a[name])
	}
	return b.String()
}
