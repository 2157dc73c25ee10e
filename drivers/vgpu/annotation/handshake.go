package annotation

import (
	"fmt"
	"strings"
	"time"
)

// The handshake of Volcano 1.15 and earlier: the plugin reports, and the scheduler requests another report. After a minute without an
// answer the scheduler declares the node's devices deleted. Volcano 1.16 uses the node's allocatable resources instead, and ignores the
// annotation.
const (
	reported   = "Reported "
	requesting = "Requesting_"
	deleted    = "Deleted_"
	// requestLayout is the scheduler's time format.
	requestLayout = "2006.01.02 15:04:05"
)

// FormatReport writes the plugin's side of NodeHandshake.
func FormatReport(now time.Time) string { return reported + now.UTC().Format(time.RFC3339) }

// Handshake is the state of NodeHandshake.
type Handshake int

// The states of a handshake.
const (
	HandshakeAbsent    Handshake = iota // not written yet
	HandshakeReported                   // the plugin spoke last
	HandshakeRequested                  // the scheduler waits for a report
	HandshakeDeleted                    // the scheduler has dropped the node's devices; a report brings them back
)

// ParseHandshake reads NodeHandshake. The plugin answers (with FormatReport) when the scheduler wrote last, and otherwise writes
// no answer.
func ParseHandshake(value string) (Handshake, error) {
	switch {
	case value == "":
		return HandshakeAbsent, nil
	case strings.HasPrefix(value, reported):
		return HandshakeReported, nil
	case strings.HasPrefix(value, requesting):
		return HandshakeRequested, checkTime(strings.TrimPrefix(value, requesting))
	case strings.HasPrefix(value, deleted):
		return HandshakeDeleted, checkTime(strings.TrimPrefix(value, deleted))
	}
	return HandshakeAbsent, fmt.Errorf("handshake %q, where Reported, Requesting_ or Deleted_ and a time are expected", shorten(value))
}

func checkTime(text string) error {
	if _, err := time.Parse(requestLayout, text); err != nil {
		return fmt.Errorf("handshake time %q, where the form %q is expected", shorten(text), requestLayout)
	}
	return nil
}
