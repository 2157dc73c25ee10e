package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/inventory"
	hardware "gpufabric.io/drivers/hardware/nvml"
)

// registerEvents registers with NVML for the events that the health monitor needs, on every GPU.
func registerEvents(_ context.Context, m *machine) (res result) {
	if m.node == nil {
		return result{state: failed, text: errNoNVML.Error()}
	}
	set, r := m.library.EventSetCreate()
	if r != nvml.SUCCESS {
		return refused(fmt.Errorf("make an event set: %w", r))
	}
	defer func() {
		if r := set.Free(); r != nvml.SUCCESS && res.state == ok {
			res = refused(fmt.Errorf("free the event set: %w", r))
		}
	}()
	var without []string
	for _, g := range m.node.GPUs {
		supported, r := g.Handle.GetSupportedEventTypes()
		if r != nvml.SUCCESS || supported&nvml.EventTypeXidCriticalError == 0 {
			without = append(without, fmt.Sprintf("GPU %d supports no XID events (types %#x, %v)", g.Index, supported, r))
			continue
		}
		const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeSingleBitEccError
		if r := g.Handle.RegisterEvents(supported&wanted, set); r != nvml.SUCCESS {
			return refused(fmt.Errorf("register the events of GPU %d: %w", g.Index, r))
		}
	}
	event, r := set.Wait(100)
	switch {
	case r == nvml.SUCCESS:
		without = append(without, fmt.Sprintf("an event came at once: type %#x, data %d", event.EventType, event.EventData))
	case r != nvml.ERROR_TIMEOUT:
		return refused(fmt.Errorf("wait for an event: %w", r))
	}
	return result{state: ok, text: fmt.Sprintf("%d GPUs watched", len(m.node.GPUs)-len(without)), more: without}
}

// readLinks reads the state and the far end of every NVLink of every GPU.
func readLinks(_ context.Context, m *machine) result {
	if m.node == nil {
		return result{state: failed, text: errNoNVML.Error()}
	}
	var lines []string
	links, down := 0, 0
	for _, g := range m.node.GPUs {
		var ends []string
		active := 0
		for link := range nvml.NVLINK_MAX_LINKS {
			up, r := g.Handle.GetNvLinkState(link)
			switch {
			case r == nvml.ERROR_NOT_SUPPORTED || r == nvml.ERROR_INVALID_ARGUMENT: // the GPU lacks it
				continue
			case r != nvml.SUCCESS:
				return refused(fmt.Errorf("NVLink %d of GPU %d: %w", link, g.Index, r))
			case up != nvml.FEATURE_ENABLED:
				down++
				continue
			}
			active++
			if end := inventory.NVLinkEnd(g, link); end != "" && !slices.Contains(ends, end) {
				ends = append(ends, end)
			}
		}
		links += active
		if active > 0 {
			lines = append(lines, fmt.Sprintf("GPU %d: %d links up, to %v", g.Index, active, ends))
		}
	}
	switch {
	case links+down == 0:
		return missing("no GPU has an NVLink")
	case down > 0:
		return result{state: failed, text: fmt.Sprintf("%d NVLinks are up and %d down", links, down), more: lines}
	}
	return result{state: ok, text: fmt.Sprintf("%d NVLinks are up", links), more: lines}
}

// readFabric reads the state of the multi-node NVLink fabric.
func readFabric(_ context.Context, m *machine) (res result) {
	d, err := hardware.Open(m.anyLibrary())
	if err != nil {
		return refused(err)
	}
	defer func() {
		if err := d.Close(); err != nil && res.state == ok {
			res = refused(err)
		}
	}()
	fabric, err := d.Fabric()
	if err != nil {
		return refused(err)
	}
	clique, state, err := fabric.Clique()
	switch {
	case err != nil:
		return refused(err)
	case state == hardware.NoFabric:
		return missing("no GPU is in a fabric of several nodes")
	case state == hardware.Joining:
		return refused(errors.New("a GPU is still joining the fabric; does the fabric manager run? (HGX with FABRIC_MODE=1 stays so for ever)"))
	}
	return fine("every GPU is in clique %s", clique)
}

// anyLibrary is the library, started or not: opening it reports what is wrong.
func (m *machine) anyLibrary() nvml.Interface {
	if m.library != nil {
		return m.library
	}
	return hardware.Load(m.search)
}
