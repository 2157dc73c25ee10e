package sharing

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// Moment orders the requests to a keeper: nanoseconds since the node booted. No clock adjustment changes it, and it continues across
// restarts of the node plugin. Requests use connections of their own, so one may arrive after a later one.
type Moment int64

// Now is the moment of the call.
func Now() Moment {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // Linux has had this clock since 2.6.39
	}
	return Moment(t.Nano())
}

func (m Moment) String() string { return strconv.FormatInt(int64(m), 10) }

// parseMoment is the inverse of String. Any other text is 0, the earliest moment.
func parseMoment(text string) Moment {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return Moment(n)
}
