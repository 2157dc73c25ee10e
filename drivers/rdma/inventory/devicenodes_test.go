package inventory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/inventory"
)

func TestDeviceNodesHaveTheKernelsNumbers(t *testing.T) {
	tree := sysfstest.New(t) // whose nodes are plain files
	roots := inventory.DeviceNodes{Dev: driver.Here(tree.Dev), Sysfs: tree.Sys}
	null := filepath.Join(tree.Dev, "infiniband/null")
	if err := os.Symlink("/dev/null", null); err != nil {
		t.Fatal(err)
	}
	got := roots.CDI([]infiniband.CharDevice{{Name: "uverbs0", Major: 231, Minor: 192}, roots.ConnectionManager(), {Name: "null"},
		{Name: "rdma_cm"}})
	want := []*specs.DeviceNode{
		{Path: "/dev/infiniband/uverbs0", HostPath: filepath.Join(tree.Dev, "infiniband/uverbs0"), Type: "c", Major: 231, Minor: 192,
			Permissions: "rwm"},
		{Path: "/dev/infiniband/rdma_cm", HostPath: filepath.Join(tree.Dev, "infiniband/rdma_cm"), Type: "c", Major: 10, Minor: 122,
			Permissions: "rwm"},
		{Path: "/dev/infiniband/null", HostPath: null, Permissions: "rwm"}, // A device of the host, whose number the runtime finds.
		// rdma_cm without a number is left out: a plain file is no device.
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDeviceNodesLackRDMACMWithoutSysfs(t *testing.T) {
	for name, content := range map[string]string{"missing": "", "garbage": "ten:122", "truncated": "10"} {
		tree := sysfstest.New(t)
		tree.Remove("devices/virtual/misc/rdma_cm/dev")
		if content != "" {
			tree.Write("devices/virtual/misc/rdma_cm/dev", content)
		}
		if got := (inventory.DeviceNodes{Dev: driver.Here(tree.Dev),
			Sysfs: tree.Sys}).ConnectionManager(); got != (infiniband.CharDevice{Name: "rdma_cm"}) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
