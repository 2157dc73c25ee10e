package apiproxy

import (
	"bufio"
	"context"
	"encoding/json"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"
)

const (
	// latest bounds the delay of an event, however many events arrive. Each watch is delayed separately, so events of different
	// kinds overtake each other.
	latest = 1500 * time.Millisecond
	// backlog is how many events may wait for a delayed one before the proxy stops reading from the API server.
	backlog = 1000
	// pairing is how long an event waits for the next one, so that the two can be swapped.
	pairing = 300 * time.Millisecond
)

// disorder describes how watches are disturbed.
type disorder struct{ seed uint64 }

// DisturbWatches repeats events, delays them, and swaps neighbours, at random moments from the seed, until stop is called. The
// API's guarantees still hold: events of one object keep their order, and none is lost.
func (p *Proxy) DisturbWatches(seed uint64) (stop func()) {
	d := &disorder{seed: seed}
	p.disorder.Store(d)
	return func() { p.disorder.CompareAndSwap(d, nil) }
}

// stream is one watch that passes through the proxy.
type stream struct {
	proxy    *Proxy
	name     string // by which a seed recognises the watch
	upstream io.Reader
	out      *io.PipeWriter
}

// event is a line of a watch and when it came.
type event struct {
	line []byte
	at   time.Time
}

func (s *stream) run(ctx context.Context) {
	lines := make(chan event, backlog)
	ended := make(chan error, 1)
	go func() { // ends with the upstream body, which the client's end closes
		in := bufio.NewReader(s.upstream)
		for {
			line, err := in.ReadBytes('\n')
			if len(line) > 0 {
				select {
				case lines <- event{line, time.Now()}:
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			if err != nil {
				ended <- err
				close(lines)
				return
			}
		}
	}()
	var random *rand.Rand
	var current *disorder
	for line := range lines {
		d := s.proxy.disorder.Load()
		if d != current {
			current, random = d, nil
			if d != nil {
				name := fnv.New64a()
				_, _ = name.Write([]byte(s.name)) // never fails
				random = rand.New(rand.NewPCG(d.seed, name.Sum64()))
			}
		}
		if _, err := s.out.Write(disturbed(ctx, random, line, lines)); err != nil {
			for range lines { // the reader ends by itself: the client's end closes its body
			}
			return
		}
	}
	_ = s.out.CloseWithError(<-ended) // never fails
}

// disturbed returns what is written instead of the line, perhaps with the next line; random is nil while nothing is disturbed.
func disturbed(ctx context.Context, random *rand.Rand, came event, lines <-chan event) []byte {
	line := came.line
	if random == nil {
		return line
	}
	switch random.IntN(4) {
	case 0: // late, and with it all later events
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(came.at.Add(time.Duration(random.Int64N(int64(latest)))))):
		}
	case 1: // twice
		return append(line, line...)
	case 2: // after the next event
		select {
		case <-ctx.Done():
		case <-time.After(pairing):
		case next, ok := <-lines:
			if !ok {
				return line
			}
			if overtakes(next.line, line) {
				return append(next.line, line...)
			}
			return append(line, next.line...)
		}
	}
	return line
}

// overtakes reports whether one event may come before another that it followed: both are changes, of different objects.
func overtakes(next, line []byte) bool {
	a, b := subject(next), subject(line)
	return a != "" && b != "" && a != b
}

// subject names the object whose change an event is, "" for bookmarks and errors.
func subject(line []byte) string {
	var change struct {
		Type   string
		Object struct {
			Metadata struct{ UID string }
		}
	}
	if json.Unmarshal(line, &change) != nil || (change.Type != "ADDED" && change.Type != "MODIFIED" && change.Type != "DELETED") {
		return ""
	}
	return change.Object.Metadata.UID
}
