package programs

import (
	"fmt"
	"os"
	"testing"

	"gpufabric.io/drivers/node/seccomp/seccomptest"
)

// The test program becomes a program of the driver as a role does.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "driver-program" {
		fmt.Fprintln(os.Stderr, Enter(os.Args[2], os.Args[3], os.Args[4:]...))
		os.Exit(1)
	}
	if len(os.Args) == 2 && os.Args[1] == seccomptest.Word {
		seccomptest.Attempts(os.Stdout)
		os.Exit(0)
	}
	os.Exit(m.Run())
}
