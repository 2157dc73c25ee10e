// Package short leaves tests that are long and rarely break out of a run with GPUFABRIC_SHORT set (SHORT=1 of the Makefile), as
// .ci/run is: it has 90 minutes on a machine that may be new. `go test -short` is another thing: it leaves out whatever starts a
// program of others.
package short

import (
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	// Variable is set in a short run.
	Variable = "GPUFABRIC_SHORT"
	// Until is the time, in seconds since 1970, after which a run begins no further part. Without it there is none.
	Until = "GPUFABRIC_UNTIL"
)

// Skip skips the test in a short run. By is the command that runs it.
func Skip(t testing.TB, by string) {
	t.Helper()
	if os.Getenv(Variable) != "" {
		t.Skipf("skipped: it is long and rarely breaks, and %s is set; %s runs it", Variable, by)
	}
}

// SkipLate skips the test where the run's time is over.
func SkipLate(t testing.TB) {
	t.Helper()
	until, err := strconv.ParseInt(os.Getenv(Until), 10, 64)
	if err == nil && time.Now().Unix() > until {
		t.Skipf("skipped: the time of this run is over (%s=%d); make kind-e2e without it runs it", Until, until)
	}
}
