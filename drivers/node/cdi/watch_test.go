package cdi

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWatchReportsRuntimeThatDoesNotReadSpecs(t *testing.T) {
	var unread, reported []string
	var trouble error
	w := Watch{
		Unread: func(time.Time) ([]string, error) { return unread, trouble },
		Report: func(reason, message string) { reported = append(reported, reason+": "+message) },
	}
	now := time.Unix(1e9, 0)
	check := func(after time.Duration, want int) {
		t.Helper()
		now = now.Add(after)
		w.check(t.Context(), now)
		if len(reported) != want {
			t.Fatalf("after %s it was reported %d times, want %d: %q", after, len(reported), want, reported)
		}
	}
	check(0, 0)
	unread = []string{"default/training"}
	check(runtimeLook, 1)
	for _, want := range []string{"ContainerRuntimeReadsNoCDI", "default/training", "enable_cdi", "AppArmor"} {
		if !strings.Contains(reported[0], want) {
			t.Errorf("it says %q, want %s in it", reported[0], want)
		}
	}
	if len(reported[0]) > 1024 {
		t.Errorf("the message has %d bytes, an Event takes 1024", len(reported[0]))
	}
	check(runtimeLook, 1)
	check(runtimeRepeat, 2) // Events from an hour ago are gone
	unread = nil
	check(runtimeLook, 2)
	unread = []string{"default/training"}
	check(runtimeLook, 3) // again is news
	trouble = errors.New("mounted noatime")
	check(runtimeLook, 4)
	if !strings.HasPrefix(reported[3], "ContainerRuntimeNotWatched: mounted noatime") {
		t.Errorf("where access times are not kept it says %q", reported[3])
	}
	check(runtimeLook, 4)
	check(runtimeRepeat, 5)
}
