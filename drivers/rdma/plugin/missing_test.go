package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/pool"
)

// A port that can carry traffic is of no use to a pod that cannot open its device.
func TestUnitsWithoutDeviceNodeAreUnhealthyUntilItAppears(t *testing.T) {
	n := newNode(t)
	n.addHCA(0x3a, "0", sysfstest.HCA{Nets: []string{"ibp3s0"}})
	node := filepath.Join(n.tree.Dev, "infiniband/uverbs0")
	if err := os.Remove(node); err != nil {
		t.Fatal(err)
	}
	a := newAPI(n)
	n.start()
	a.lists <- []pool.Object{object("p", "p", 2, "ibp3s0")}
	a.await(t, "p", "missing device node", func(r *v1alpha1.RDMAPoolNode) bool {
		return r != nil && r.Devices == 1 && r.HealthyDevices == 0 && r.Units == 0 && strings.Contains(r.Message, "/infiniband/uverbs0")
	})
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.await(t, "p", "device node", func(r *v1alpha1.RDMAPoolNode) bool { return r != nil && r.HealthyDevices == 1 && r.Units == 2 })
}

func TestPoolWithoutUnitsIsReported(t *testing.T) {
	n := newNode(t)
	n.addHCA(0x3a, "0", sysfstest.HCA{Nets: []string{"ibp3s0"}})
	a := newAPI(n)
	n.start()
	a.lists <- []pool.Object{object("p", "p", 0, "ibp3s0")}
	a.await(t, "p", "lack of units", func(r *v1alpha1.RDMAPoolNode) bool {
		return r != nil && r.HealthyDevices == 1 && r.Units == 0 && strings.Contains(r.Message, "set rdmaHcaMax")
	})
}
