package draplugin

import (
	"errors"
	"strings"
	"testing"
	"time"
)

//shows:node-cdi
func TestARuntimeThatReadsNoSpecsIsReportedOnceInAWhile(t *testing.T) {
	var unread, told []string
	var trouble error
	r := reader{
		look: func() ([]string, error) { return unread, trouble },
		tell: func(reason, message string) { told = append(told, reason+": "+message) },
	}
	now := time.Unix(1e9, 0)
	check := func(after time.Duration, wantTold int) {
		t.Helper()
		now = now.Add(after)
		r.check(t.Context(), now)
		if len(told) != wantTold {
			t.Fatalf("after %s it was reported %d times, want %d: %q", after, len(told), wantTold, told)
		}
	}
	check(0, 0)
	unread = []string{"default/training"}
	check(runtimeLook, 1)
	for _, want := range []string{"ContainerRuntimeReadsNoCDI", "default/training", "enable_cdi", "AppArmor"} {
		if !strings.Contains(told[0], want) {
			t.Errorf("it says %q, want %s in it", told[0], want)
		}
	}
	if len(told[0]) > maxEventMessage {
		t.Errorf("the message has %d bytes, an Event takes %d", len(told[0]), maxEventMessage)
	}
	check(runtimeLook, 1)
	check(runtimeRepeat, 2) // Events of an hour ago are gone
	unread = nil
	check(runtimeLook, 2)
	unread = []string{"default/training"}
	check(runtimeLook, 3) // again is news
	trouble = errors.New("mounted noatime")
	check(runtimeRepeat, 3)
}
