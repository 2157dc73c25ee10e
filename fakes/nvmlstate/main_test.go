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
	base := "" // a node is many small files; in memory, where possible
	if _, err := os.Stat("/dev/shm"); err == nil {
		base = "/dev/shm"
	}
	dir, err := os.MkdirTemp(base, "nvmlstate-")
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
