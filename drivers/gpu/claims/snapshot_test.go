package claims

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/ledger"
)

// on makes a Preparer of a node's GPUs that offers every form of them.
func on(t *testing.T, m *gputest.Machine, holders *ledger.Ledger) *run {
	t.Helper()
	node := readNode(t, m)
	offer := devices.Options{Forms: devices.Forms{Mode: devices.ModeFlexible}}
	r := &run{}
	r.Preparer = New(&Hardware{Node: node, Offer: offer, Pool: devices.NewPool(node, offer)}, Options{Ledger: holders, Pool: "n1-gpu",
		Events: r})
	return r
}

func readNode(t *testing.T, m *gputest.Machine) *inventory.Node {
	t.Helper()
	place := func(id string) (inventory.Place, error) { return inventory.Place{BusID: id}, nil }
	node, err := inventory.Reader{NVML: m, Locate: place}.Read()
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func allocated(name string, shared bool) draplugin.AllocatedDevice {
	d := draplugin.AllocatedDevice{DeviceRequestAllocationResult: resourceapi.DeviceRequestAllocationResult{Pool: "n1-gpu", Device: name}}
	if shared {
		share := types.UID("s")
		d.ShareID = &share
	}
	return d
}

func TestFormsOfOneGPUExcludeEachOtherInTheLedger(t *testing.T) {
	whole, left, right := allocated("gpu-0", false), allocated("gpu-0-mig-3g20gb-9-0", false), allocated("gpu-0-mig-3g20gb-9-4", false)
	share := allocated("gpu-0-shared", true)
	for _, test := range []struct {
		name          string
		first, second draplugin.AllocatedDevice
		fits          bool
	}{
		{"two halves", left, right, true},
		{"a half twice", left, left, false},
		{"a half of a whole GPU", whole, left, false},
		{"a whole GPU with a half given", right, whole, false},
		{"two shares", share, share, true},
		{"a share beside a half", left, share, false},
		{"another GPU", whole, allocated("gpu-1", false), true},
		{"a device that cannot be seen", allocated("gpu-7", false), allocated("gpu-7", false), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var holders ledger.Ledger
			k := on(t, gputest.New(t, 2), &holders)
			if err := holders.TryAcquire(ledger.Owner{ID: "a", Name: "claim a"}, k.Holds(test.first)...); err != nil {
				t.Fatal(err)
			}
			err := holders.TryAcquire(ledger.Owner{ID: "b", Name: "claim b"}, k.Holds(test.second)...)
			if (err == nil) != test.fits || err != nil && !strings.Contains(err.Error(), "is held by claim a") {
				t.Errorf("the second: %v", err)
			}
		})
	}
}

func TestSnapshotAnnouncesChanges(t *testing.T) {
	k := on(t, gputest.New(t, 1), &ledger.Ledger{})
	before, changed := k.Watch()
	offered := len(before.Pool.Devices())
	k.SetForms(devices.Forms{Mode: devices.ModeWhole})
	select {
	case <-changed:
	default:
		t.Error("the change was not announced")
	}
	if before.Offer.Forms.Mode != devices.ModeFlexible || len(before.Pool.Devices()) != offered {
		t.Error("the snapshot was changed")
	}
	if now := k.Hardware(); len(now.Pool.Devices()) != 1 || now.Pool.Device("gpu-0") == nil {
		t.Errorf("offered are %d devices, want the whole GPU", len(now.Pool.Devices()))
	}
}

// A GPU that does not answer at the start comes back to the claim that had it: no other claim gets it in between.
func TestSnapshotKeepsAnAppearingDeviceForItsClaim(t *testing.T) {
	var holders ledger.Ledger
	m := gputest.New(t, 2)
	all := m.GPUs
	m.GPUs = all[:1]
	k := on(t, m, &holders)
	name := allocated("gpu-1", false)
	if err := holders.TryAcquire(ledger.Owner{ID: "u1", Name: "claim ml/train"}, k.Holds(name)...); err != nil {
		t.Fatal(err)
	}
	k.recovered(claimstate.Device{Device: "gpu-1"}, "u1")
	m.GPUs = all
	k.SetNode(readNode(t, m), nil)
	err := holders.TryAcquire(ledger.Owner{ID: "u2", Name: "claim ml/late"}, k.Holds(allocated("gpu-1-mig-3g20gb-9-4", false))...)
	if err == nil || !strings.Contains(err.Error(), "is held by claim ml/train") {
		t.Errorf("a part of the GPU: %v", err)
	}
	if len(k.reported) > 0 {
		t.Errorf("reported %q", k.reported)
	}
}
