package sharing

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// Moment orders what is asked of a keeper: nanoseconds since the node booted, which no clock of anybody's changes and which the node plugin
// of before a restart counted too. Requests travel on connections of their own, so one may come after another that was made later. 0: not
// known, as from an older node plugin.
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

// parseMoment reads what String wrote. Anything else is a moment that is not known.
func parseMoment(text string) Moment {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return Moment(n)
}
