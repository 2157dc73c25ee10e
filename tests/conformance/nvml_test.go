package conformance

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/profile"
)

// machine is the machine as go-nvml enumerates it, in the profile's words.
type machine struct {
	Driver, CUDA string
	GPUs         []gpu
}

type gpu struct {
	Name, UUID, Serial, PCI, Capability, Cluster string
	Clique                                       uint32
	Minor, MIGProfiles, Links, Placements        int
	MemoryMiB                                    uint64
	Reachable                                    bool // its handle is also found by UUID and by PCI address
}

func TestGoNVMLEnumeratesDevicesOfProfile(t *testing.T) {
	for _, name := range withGPUs(t) {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			if diff := cmp.Diff(expectedMachine(n.Node), ask[machine](t, n, "go-nvml")); diff != "" {
				t.Errorf("-profile +go-nvml:\n%s", diff)
			}
		})
	}
}

func expectedMachine(n *profile.Node) machine {
	p := n.Profile
	m := machine{Driver: p.Driver.Version, CUDA: p.Driver.CUDA}
	for _, g := range n.GPUs {
		e := gpu{Name: p.GPUs.Model.Name, UUID: g.UUID, Serial: g.Serial, Capability: p.GPUs.Model.ComputeCapability, Minor: g.Minor,
			PCI: g.Address.String(), MemoryMiB: uint64(toldMiB(p.GPUs.Model)), Cluster: n.ClusterUUID, Reachable: true}
		if p.Fabric != nil {
			e.Clique = p.Fabric.CliqueID
		}
		if l := p.GPUs.NVLink; l != nil {
			e.Links = l.Links
		}
		if mig := p.GPUs.Model.MIG; mig != nil {
			e.MIGProfiles = len(mig.Profiles)
			for _, q := range mig.Profiles {
				e.Placements += len(q.Starts)
			}
		}
		m.GPUs = append(m.GPUs, e)
	}
	return m
}

// askNVML runs in the child, whose loader finds the node's library.
func askNVML() (any, error) {
	if r := nvml.Init(); r != nvml.SUCCESS {
		return nil, fmt.Errorf("init: %w", r)
	}
	driver, r := nvml.SystemGetDriverVersion()
	if r != nvml.SUCCESS {
		return nil, r
	}
	cuda, r := nvml.SystemGetCudaDriverVersion()
	if r != nvml.SUCCESS {
		return nil, r
	}
	count, r := nvml.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, r
	}
	m := machine{Driver: driver, CUDA: fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)}
	for i := range count {
		g, err := askGPU(i)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		m.GPUs = append(m.GPUs, g)
	}
	return m, nil
}

func askGPU(index int) (g gpu, err error) {
	d, r := nvml.DeviceGetHandleByIndex(index)
	// must keeps the first failure. Each of these calls has to succeed on every GPU.
	must := func(what string, r nvml.Return) {
		if r != nvml.SUCCESS && err == nil {
			err = fmt.Errorf("%s: %w", what, r)
		}
	}
	must("handle", r)
	g.Name, r = d.GetName()
	must("name", r)
	g.UUID, r = d.GetUUID()
	must("UUID", r)
	g.Serial, r = d.GetSerial()
	must("serial", r)
	g.Minor, r = d.GetMinorNumber()
	must("minor", r)
	memory, r := d.GetMemoryInfo()
	if r != nvml.ERROR_NOT_SUPPORTED { // an integrated GPU does not report it
		must("memory", r)
	}
	g.MemoryMiB = memory.Total >> 20
	major, minor, r := d.GetCudaComputeCapability()
	must("compute capability", r)
	g.Capability = fmt.Sprintf("%d.%d", major, minor)
	pci, r := d.GetPciInfo()
	must("PCI", r)
	g.PCI = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	byUUID, r := nvml.DeviceGetHandleByUUID(g.UUID)
	must("by UUID", r)
	byPCI, r := nvml.DeviceGetHandleByPciBusId(strings.ToUpper(g.PCI))
	must("by PCI address", r)
	g.Reachable = byUUID == d && byPCI == d
	if fabric, r := d.GetGpuFabricInfoV().V2(); r == nvml.SUCCESS && fabric.State == nvml.GPU_FABRIC_STATE_COMPLETED {
		u := hex.EncodeToString(fabric.ClusterUuid[:])
		g.Cluster = strings.Join([]string{u[:8], u[8:12], u[12:16], u[16:20], u[20:]}, "-")
		g.Clique = fabric.CliqueId
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, r := d.GetNvLinkState(link); r == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			g.Links++
		}
	}
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, r := d.GetGpuInstanceProfileInfo(kind)
		if r != nvml.SUCCESS {
			continue
		}
		g.MIGProfiles++
		placements, r := d.GetGpuInstancePossiblePlacements(&info)
		must("placements", r)
		g.Placements += len(placements)
	}
	return g, err
}
