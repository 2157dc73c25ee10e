// Package suite runs the repository's test suites in parts: each part is a command with a limit of its own. The short suite is what
// .ci/run runs before a change lands, the long one is `make test-long`.
package suite

import (
	"fmt"
	"time"
)

// Part is one part of a suite.
type Part struct {
	Name    string
	Command string        // for bash, in the checkout
	Limit   time.Duration // the part is ended and has failed when it takes longer
	Needs   []string      // programs on the PATH
	After   []string      // parts that end before this one begins, passed or not
	Low     bool          // at the lowest priority: it computes while others mostly wait
}

// Result is the end of a part.
type Result struct {
	Part  string
	Began time.Time
	Took  time.Duration
	// Failure is one line; empty when the part has passed.
	Failure string
}

func (r Result) String() string {
	if r.Failure == "" {
		return fmt.Sprintf("passed %s after %.0f s", r.Part, r.Took.Seconds())
	}
	return fmt.Sprintf("failed %s after %.0f s: %s", r.Part, r.Took.Seconds(), r.Failure)
}
