package nvmlstate_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/trace"
)

func TestTraceNamesEveryCallAndStub(t *testing.T) {
	c, _ := both(t, "gb200-nvl72")
	path := filepath.Join(t.TempDir(), "trace")
	t.Setenv("FAKEFABRIC_TRACE", path) // the library looks at it with nvmlInit
	if r := c.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	d, _ := c.DeviceGetHandleByIndex(0)
	d.GetUUID()
	d.GetFanSpeed() // a stub
	if _, r := c.DeviceGetHandleByIndex(99); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Error(r)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	calls, damaged, err := trace.Read(f)
	if err != nil || damaged != 0 {
		t.Fatal(damaged, err)
	}
	type call struct {
		function    string
		result      nvml.Return
		implemented bool
	}
	seen := map[call]bool{}
	for _, x := range calls {
		seen[call{x.Function, nvml.Return(x.Result), x.Implemented}] = true
	}
	for _, want := range []call{{"nvmlInit_v2", nvml.SUCCESS, true}, {"nvmlDeviceGetUUID", nvml.SUCCESS, true},
		{"nvmlDeviceGetFanSpeed", nvml.ERROR_NOT_SUPPORTED, false}, {"nvmlDeviceGetHandleByIndex_v2", nvml.ERROR_INVALID_ARGUMENT, true}} {
		if !seen[want] {
			t.Errorf("no %+v in %+v", want, seen)
		}
	}
}
