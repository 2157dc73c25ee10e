package nvmlstate

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/state"
)

func (d *device) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	return get(d, "DeviceGetGpuFabricInfo", whole, func(p part) (nvml.GpuFabricInfo, nvml.Return) {
		c := &p.gpu.Core
		if c.FabricState == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
			return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.GpuFabricInfo{ClusterUuid: c.FabricCluster, Status: c.FabricStatus, CliqueId: c.FabricClique, State: uint8(c.FabricState)},
			nvml.SUCCESS
	})
}

func (d *device) GetGpuFabricInfo_v4() (nvml.GpuFabricInfo_v4, nvml.Return) {
	return get(d, "DeviceGetGpuFabricInfo_v4", whole, func(p part) (nvml.GpuFabricInfo_v4, nvml.Return) {
		c := &p.gpu.Core
		if c.FabricState == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
			return nvml.GpuFabricInfo_v4{}, nvml.ERROR_NOT_SUPPORTED
		}
		info := nvml.GpuFabricInfo_v4{ClusterUuid: c.FabricCluster, Status: c.FabricStatus, State: uint8(c.FabricState),
			HealthMask: c.FabricHealth, HealthSummary: uint8(c.FabricSummary)}
		for kind := range nvml.GPU_FABRIC_CLIQUE_TYPE_MULTICAST_LOGICAL_ENDPOINT + 1 {
			info.Cliques[kind] = nvml.GpuFabricClique_v1{Type: uint8(kind), Id: c.FabricClique}
			info.NumCliques++
		}
		return info, nvml.SUCCESS
	})
}

// link reads one NVLink.
func link[T any](d *device, function string, number int, fn func(part, *state.Link) (T, nvml.Return)) (T, nvml.Return) {
	return get(d, function, whole, func(p part) (T, nvml.Return) {
		var zero T
		switch {
		case number < 0 || number >= nvml.NVLINK_MAX_LINKS:
			return zero, nvml.ERROR_INVALID_ARGUMENT
		case number >= int(p.model.LinkCount) || number >= state.MaxLinks:
			return zero, nvml.ERROR_NOT_SUPPORTED
		}
		return fn(p, &p.gpu.Links[number])
	})
}

func (d *device) GetNvLinkState(number int) (nvml.EnableState, nvml.Return) {
	return link(d, "DeviceGetNvLinkState", number, func(_ part, l *state.Link) (nvml.EnableState, nvml.Return) {
		return nvml.EnableState(min(l.Active, 1)), nvml.SUCCESS
	})
}

func (d *device) GetNvLinkVersion(number int) (uint32, nvml.Return) {
	return link(d, "DeviceGetNvLinkVersion", number, func(p part, _ *state.Link) (uint32, nvml.Return) {
		return p.model.LinkVersion, nvml.SUCCESS
	})
}

func (d *device) GetNvLinkRemotePciInfo(number int) (nvml.PciInfo, nvml.Return) {
	return link(d, "DeviceGetNvLinkRemotePciInfo_v2", number, func(_ part, l *state.Link) (nvml.PciInfo, nvml.Return) {
		if l.Active == 0 {
			return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return pciInfo(l.Domain, l.Bus, l.Device, l.PCIDevice), nvml.SUCCESS
	})
}

func (d *device) GetNvLinkRemoteDeviceType(number int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	return link(d, "DeviceGetNvLinkRemoteDeviceType", number, func(_ part, l *state.Link) (nvml.IntNvLinkDeviceType, nvml.Return) {
		if l.Active == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.IntNvLinkDeviceType(l.RemoteType), nvml.SUCCESS
	})
}

func (d *device) GetNvLinkErrorCounter(number int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
	return link(d, "DeviceGetNvLinkErrorCounter", number, func(_ part, l *state.Link) (uint64, nvml.Return) {
		switch counter {
		case nvml.NVLINK_ERROR_DL_REPLAY:
			return l.Replays, nvml.SUCCESS
		case nvml.NVLINK_ERROR_DL_RECOVERY:
			return l.Recoveries, nvml.SUCCESS
		case nvml.NVLINK_ERROR_DL_CRC_FLIT, nvml.NVLINK_ERROR_DL_CRC_DATA:
			return l.CRCErrors, nvml.SUCCESS
		case nvml.NVLINK_ERROR_DL_ECC_DATA:
			return 0, nvml.SUCCESS
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	})
}

// other gives the GPU number behind another handle of the same library.
func (d *device) other(o nvml.Device) (int, bool) {
	od, ok := o.(*device)
	if !ok || od.isMIG || od.lib != d.lib {
		return 0, false
	}
	return od.gpu, true
}

func (d *device) GetTopologyCommonAncestor(o nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	i, ok := d.other(o)
	return get(d, "DeviceGetTopologyCommonAncestor", whole, func(p part) (nvml.GpuTopologyLevel, nvml.Return) {
		if !ok || i >= state.MaxGPUs {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.GpuTopologyLevel(p.gpu.Core.Topology[i]), nvml.SUCCESS
	})
}

func (d *device) GetTopologyNearestGpus(level nvml.GpuTopologyLevel) ([]nvml.Device, nvml.Return) {
	near := []nvml.Device{}
	r := d.lib.read("DeviceGetTopologyNearestGpus", func(b *state.Body) nvml.Return {
		near = near[:0]
		p, r := d.gpuOnly(b)
		if r != nvml.SUCCESS {
			return r
		}
		for i := range b.GPUs {
			if i != d.gpu && int(p.gpu.Core.Topology[i]) <= int(level) {
				near = append(near, d.lib.device(i))
			}
		}
		return nvml.SUCCESS
	})
	return near, r
}

func (d *device) GetP2PStatus(o nvml.Device, index nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	i, ok := d.other(o)
	return get(d, "DeviceGetP2PStatus", whole, func(p part) (nvml.GpuP2PStatus, nvml.Return) {
		if !ok || i >= state.MaxGPUs || i == d.gpu || index >= nvml.P2P_CAPS_INDEX_UNKNOWN {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		nvlink := p.gpu.Core.P2P[i] != 0
		pci := int(p.gpu.Core.Topology[i]) <= int(nvml.TOPOLOGY_HOSTBRIDGE)
		switch {
		case index == nvml.P2P_CAPS_INDEX_NVLINK || index == nvml.P2P_CAPS_INDEX_ATOMICS:
			if !nvlink {
				return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
			}
		case pci || nvlink && index != nvml.P2P_CAPS_INDEX_PCI:
		default:
			return nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED, nvml.SUCCESS
		}
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	})
}
