// Package short leaves tests that are long and rarely break out of a run with GPUFABRIC_SHORT set (SHORT=1 of the Makefile), as .ci/run is: it has
// 90 minutes on a machine that may be new. `go test -short` is another thing: it leaves out whatever starts a program of others.
package short

import (
	"os"
	"testing"
)

// Variable is set in a short run.
const Variable = "GPUFABRIC_SHORT"

// Skip skips the test in a short run. By is the command that runs it.
func Skip(t testing.TB, by string) {
	t.Helper()
	if os.Getenv(Variable) != "" {
		t.Skipf("skipped: it is long and rarely breaks, and %s is set; %s runs it", Variable, by)
	}
}
