package conformance

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/nvmlstate"
)

// TestVersionedHandlersDoNotNeedTheLibrary calls what go-nvml's handlers call in C, in a process that never loads libnvidia-ml.so.1.
func TestVersionedHandlersDoNotNeedTheLibrary(t *testing.T) {
	root, n := render(t, "gb200-nvl72")
	library := nvmlstate.New(root)
	if r := library.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	gpu, r := library.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	fabric, r := gpu.GetGpuFabricInfoV().V3()
	if r != nvml.SUCCESS || fabric.CliqueId != n.Profile.Fabric.CliqueID {
		t.Errorf("GetGpuFabricInfoV: clique %d, %v; want %d", fabric.CliqueId, r, n.Profile.Fabric.CliqueID)
	}
	profile, r := library.DeviceGetGpuInstanceProfileInfoV(gpu, nvml.GPU_INSTANCE_PROFILE_1_SLICE).V2()
	if r != nvml.SUCCESS || profile.Id != 19 {
		t.Errorf("GetGpuInstanceProfileInfoV: ID %d, %v; want 19", profile.Id, r)
	}
	handler := gpu.GetTemperatureV()
	if r := library.Shutdown(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	if _, r := handler.V1(); r == nvml.SUCCESS {
		t.Error("a handler of a library that was shut down still answers")
	}
}
