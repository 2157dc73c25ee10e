package apiproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// change is an event of a watch as the API server writes it.
func change(kind, uid string, version int) string {
	return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"uid":%q,"resourceVersion":"%d"}}}`+"\n", kind, uid, version)
}

// passed sends all events of a watch through the proxy at once. It returns what comes out, and how long that took.
func passed(t *testing.T, p *Proxy, events string) (out string, took time.Duration) {
	t.Helper()
	reader, writer := io.Pipe()
	watch := &stream{proxy: p, name: "somebody /api/v1/pods", upstream: strings.NewReader(events), out: writer}
	begin := time.Now()
	go watch.run(t.Context()) // ends with its upstream
	content, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return string(content), time.Since(begin)
}

// versions are the resource versions of each object in their order, without immediate repetitions.
func versions(t *testing.T, events string) (byObject map[string][]string, repeated int) {
	t.Helper()
	byObject = map[string][]string{}
	for line := range strings.Lines(events) {
		var e struct {
			Object struct {
				Metadata struct{ UID, ResourceVersion string }
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		object, version := e.Object.Metadata.UID, e.Object.Metadata.ResourceVersion
		if slices.Contains(byObject[object], version) {
			repeated++
			if last := byObject[object]; last[len(last)-1] == version {
				continue
			}
		}
		byObject[object] = append(byObject[object], version)
	}
	return byObject, repeated
}

func TestDisorderKeepsTheOrderOfEachObject(t *testing.T) {
	var events string
	for version := range 60 {
		events += change("MODIFIED", string(rune('a'+version%3)), version)
	}
	want, _ := versions(t, events)
	repeats, overtakings := 0, 0
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			var p Proxy
			p.DisturbWatches(seed)
			out, took := passed(t, &p, events)
			got, repeated := versions(t, out)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("seed %d: the objects' versions came as %v; want %v", seed, got, want)
			}
			if took > latest {
				t.Errorf("seed %d: the last event came after %s; want %s at most", seed, took, latest)
			}
			repeats += repeated
			before := -1
			for line := range strings.Lines(out) {
				var object rune
				var version int
				if _, err := fmt.Sscanf(line, `{"type":"MODIFIED","object":{"metadata":{"uid":"%c","resourceVersion":"%d"}}}`, &object,
					&version); err != nil {
					t.Fatal(err)
				}
				if version < before {
					overtakings++
				}
				before = version
			}
			again, _ := passed(t, &p, events)
			if again != out {
				t.Errorf("seed %d disturbs the same watch in another way the second time", seed)
			}
		})
	}
	if repeats == 0 || overtakings == 0 {
		t.Errorf("%d events were repeated and %d overtaken; want some of each", repeats, overtakings)
	}
}

func TestDisorderEndsWithTheDisturbance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := change("ADDED", "a", 1) + change("MODIFIED", "a", 2) + change("DELETED", "a", 3) + `{"type":"BOOKMARK","object":{}}` + "\n"
		var p Proxy
		stop := p.DisturbWatches(1)
		stop()
		if out, took := passed(t, &p, events); out != events || took != 0 {
			t.Errorf("after %s came %s; want at once %s", took, out, events)
		}
	})
}

func TestDisorderReordersOnlyAcrossObjects(t *testing.T) {
	bookmark := `{"type":"BOOKMARK","object":{"metadata":{"uid":"b"}}}` + "\n"
	for name, test := range map[string]struct {
		next, line string
		want       bool
	}{
		"another object's change":        {change("ADDED", "b", 2), change("MODIFIED", "a", 1), true},
		"another object's end":           {change("DELETED", "b", 2), change("ADDED", "a", 1), true},
		"the same object's next":         {change("MODIFIED", "a", 2), change("ADDED", "a", 1), false},
		"a bookmark, which ends a state": {bookmark, change("ADDED", "a", 1), false},
		"a change after a bookmark":      {change("ADDED", "a", 1), bookmark, false},
		"an error":                       {`{"type":"ERROR","object":{"code":410}}`, change("ADDED", "a", 1), false},
		"what is no JSON":                {"k8s\x00", change("ADDED", "a", 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := overtakes([]byte(test.next), []byte(test.line)); got != test.want {
				t.Errorf("%t; want %t", got, test.want)
			}
		})
	}
}
