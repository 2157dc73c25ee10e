package nvml

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpufabric.io/drivers/hardware/driver"
)

var (
	clusterA = [16]uint8{0x69, 0xa1, 0x9a, 0x31, 0xf4, 0x1c, 0x45, 0xa5, 0x82, 0x45, 0x57, 0x9b, 0x6b, 0xce, 0x5b, 0xdd}
	clusterB = [16]uint8{1}
)

func joined(cluster [16]uint8, clique uint32) nvml.GpuFabricInfo {
	return nvml.GpuFabricInfo{ClusterUuid: cluster, CliqueId: clique, State: nvml.GPU_FABRIC_STATE_COMPLETED}
}

type gpu struct {
	info nvml.GpuFabricInfo
	code nvml.Return
}

func driverWith(gpus ...gpu) *Driver {
	return &Driver{lib: &mock.Interface{
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return &mock.Device{
				GetUUIDFunc:          func() (string, nvml.Return) { return fmt.Sprintf("GPU-%d", i), nvml.SUCCESS },
				GetGpuFabricInfoFunc: func() (nvml.GpuFabricInfo, nvml.Return) { return gpus[i].info, gpus[i].code },
			}, nvml.SUCCESS
		},
	}}
}

func TestCliqueIsThatOfAllGPUs(t *testing.T) {
	const clique = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"
	inClique := gpu{info: joined(clusterA, 32766)}
	joining := gpu{info: nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_IN_PROGRESS}}
	failed := joined(clusterA, 32766)
	failed.Status = uint32(nvml.ERROR_UNKNOWN)
	for name, c := range map[string]struct {
		gpus   []gpu
		clique string
		state  FabricState
		says   string
	}{
		"no GPUs":                         {nil, "", NoFabric, ""},
		"all in one clique":               {[]gpu{inClique, inClique}, clique, Joined, ""},
		"GPUs without fabric":             {[]gpu{{code: nvml.ERROR_NOT_SUPPORTED}}, "", NoFabric, ""},
		"a driver from before fabrics":    {[]gpu{{code: nvml.ERROR_FUNCTION_NOT_FOUND}}, "", NoFabric, ""},
		"a fabric that ends at the board": {[]gpu{{info: joined([16]uint8{}, 0)}}, "", NoFabric, ""},
		"one GPU beside without fabric":   {[]gpu{inClique, {code: nvml.ERROR_NOT_SUPPORTED}}, clique, Joined, ""},
		"one GPU still joining":           {[]gpu{inClique, joining}, "", Joining, ""},
		"two cliques": {[]gpu{inClique, {info: joined(clusterA, 1)}}, "", NoFabric,
			"GPU-1 in 69a19a31-f41c-45a5-8245-579b6bce5bdd.1"},
		"two clusters":                       {[]gpu{inClique, {info: joined(clusterB, 32766)}}, "", NoFabric, "disagree"},
		"one GPU lost":                       {[]gpu{inClique, {code: nvml.ERROR_GPU_IS_LOST}}, "", NoFabric, "fallen off the bus"},
		"one GPU that could not register":    {[]gpu{inClique, {info: failed}}, "", NoFabric, "fabric registration of GPU 1"},
		"a lost GPU where there's no fabric": {[]gpu{{code: nvml.ERROR_NOT_SUPPORTED}, {code: nvml.ERROR_GPU_IS_LOST}}, "", NoFabric, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fabric, err := driverWith(c.gpus...).Fabric()
			if err != nil {
				t.Fatal(err)
			}
			clique, state, err := fabric.Clique()
			if clique != c.clique || state != c.state || (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
				t.Errorf("got %q, %s, %v; want %q, %s, an error saying %q", clique, state, err, c.clique, c.state, c.says)
			}
		})
	}
}

func TestCliqueReturnsErrDisagree(t *testing.T) {
	fabric, _ := driverWith(gpu{info: joined(clusterA, 1)}, gpu{info: joined(clusterA, 2)}).Fabric()
	if _, _, err := fabric.Clique(); !errors.Is(err, ErrDisagree) {
		t.Errorf("%v is not ErrDisagree", err)
	}
}

func TestAwaitNamesMissingLibrary(t *testing.T) {
	_, err := Open(Load(driver.Search{Roots: []driver.Place{driver.Here(t.TempDir())}}))
	if !errors.Is(err, nvml.ERROR_LIBRARY_NOT_FOUND) || !strings.Contains(err.Error(), "--driver-root") {
		t.Errorf("error %v", err)
	}
}
