package nvmlstate_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The C library can be loaded once per process, from one root.
var (
	sharedRoot string
	loaded     bool
	clib       nvml.Interface
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "nvmlstate-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sharedRoot = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
