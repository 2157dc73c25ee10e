// Package short leaves tests that are long and rarely break out of the short suite: GPUFABRIC_SHORT is set in it (SHORT=1 of the
// Makefile), and the long suite runs them (package gpufabric.io/tests/suite). `go test -short` is another thing: it leaves out whatever
// starts a program of others.
package short

import (
	"os"
	"testing"
)

// Variable is set in the short suite.
const Variable = "GPUFABRIC_SHORT"

// Skip skips the test in the short suite. By is the command that runs it.
func Skip(t testing.TB, by string) {
	t.Helper()
	if os.Getenv(Variable) != "" {
		t.Skipf("skipped: it is long and rarely breaks, and %s is set; %s runs it", Variable, by)
	}
}
