package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/Mellanox/rdmamap"
	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/profile"
)

// rdmaDevices is the result of rdmamap: each device's character devices, and the device of each PCI function.
type rdmaDevices struct {
	CharDevices map[string][]string
	OfFunction  map[string][]string
}

func TestRDMAMapFindsEveryDevice(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			if len(n.NICs) == 0 {
				t.Skip("skipped: the profile has no NIC")
			}
			want := rdmaDevices{map[string][]string{}, map[string][]string{}}
			for _, nic := range n.NICs {
				devices := []string{"/dev/infiniband/rdma_cm", fmt.Sprintf("/dev/infiniband/uverbs%d", nic.Index)}
				if !nic.Switchdev() {
					devices = append(devices, fmt.Sprintf("/dev/infiniband/umad%d", nic.Index))
				}
				if nic.Link == "InfiniBand" {
					devices = append(devices, fmt.Sprintf("/dev/infiniband/issm%d", nic.Index))
				}
				slices.Sort(devices)
				want.CharDevices[nic.Device] = devices
				want.OfFunction[nic.Address.String()] = []string{nic.Device}
			}
			if diff := cmp.Diff(want, ask[rdmaDevices](t, n, "rdmamap")); diff != "" {
				t.Errorf("-profile +rdmamap:\n%s", diff)
			}
		})
	}
}

// askRDMAMap is the child; rdmamap reads /sys.
func askRDMAMap() (any, error) {
	found := rdmaDevices{map[string][]string{}, map[string][]string{}}
	for _, device := range rdmamap.GetRdmaDeviceList() {
		found.CharDevices[device] = slices.Sorted(slices.Values(rdmamap.GetRdmaCharDevices(device)))
	}
	functions, err := pciFunctions()
	for _, function := range functions {
		if devices := rdmamap.GetRdmaDevicesForPcidev(function); len(devices) > 0 {
			found.OfFunction[function] = devices
		}
	}
	return found, err
}
