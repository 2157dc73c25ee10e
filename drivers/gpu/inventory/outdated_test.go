package inventory_test

import (
	"slices"
	"testing"

	"gpufabric.io/drivers/gpu/inventory"
)

func gpu(index int, uuid string) *inventory.GPU {
	return &inventory.GPU{Index: index, Minor: index, UUID: uuid}
}

func TestKeepingRetainsGPUsThatCannotBeReadAgain(t *testing.T) {
	before := &inventory.Node{GPUs: []*inventory.GPU{gpu(0, "a"), gpu(1, "b"), gpu(2, "c")}, DriverVersion: "1"}
	newer := &inventory.Node{GPUs: []*inventory.GPU{gpu(2, "c"), gpu(3, "new")}, Missing: []int{0, 1, 4}, DriverVersion: "2"}
	merged := before.Keeping(newer)
	var uuids []string
	for _, g := range merged.GPUs {
		uuids = append(uuids, g.UUID)
	}
	if !slices.Equal(uuids, []string{"a", "b", "c", "new"}) {
		t.Errorf("GPUs %v", uuids)
	}
	if !slices.Equal(merged.Missing, []int{4}) || merged.DriverVersion != "2" {
		t.Errorf("missing %v, driver %s; want 4 alone, and the newer driver", merged.Missing, merged.DriverVersion)
	}
	if merged.ByUUID("c") != newer.GPUs[0] {
		t.Error("a GPU that was read again is the earlier one")
	}
	if len(newer.GPUs) != 2 || len(newer.Missing) != 3 {
		t.Errorf("the newer reading was changed: %d GPUs, missing %v", len(newer.GPUs), newer.Missing)
	}
}
