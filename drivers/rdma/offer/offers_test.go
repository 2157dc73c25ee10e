package offer_test

import (
	"slices"
	"testing"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

func TestOffersAreThePoolsThatAreServedAndOutliveARestart(t *testing.T) {
	layouts, err := offer.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := dev(t, "uverbs0", "uverbs1")
	start := func(boot string) *offer.Offers {
		return offer.NewOffers(offer.Node{
			Boot: boot, Nodes: inventory.DeviceNodes{Dev: driver.Here(root)}, Layouts: layouts,
			Kubelet: deviceplugin.NewHost(t.TempDir(), &filewatch.Watcher{}, deviceplugin.NewMetrics()),
		})
	}
	o, both := start("b1"), []pool.Pool{shared(4, 0, 1)}
	o.Serve(t.Context(), both, up)
	if got := o.Healthy("rdma/a", up); got != 4 {
		t.Errorf("%d healthy units", got)
	}
	holding := o.Snapshot()
	before := holding("rdma/a", "0")[0].Key()
	o.Serve(t.Context(), nil, up)
	if got := o.Healthy("rdma/a", up); got != 0 || holding("rdma/a", "0") == nil || o.Snapshot()("rdma/a", "0") != nil {
		t.Errorf("a pool that is no longer served has %d healthy units", got)
	}
	// The next run finds one HCA missing. In the same boot its units stay with it; after a reboot they go to the HCA that is there.
	for boot, healthy := range map[string]int32{"b1": 2, "b2": 4} {
		layout, err := layouts.Load("rdma/a")
		if err != nil {
			t.Fatal(err)
		}
		next := start(boot)
		next.Serve(t.Context(), []pool.Pool{shared(4, 1)}, up)
		if got := next.Healthy("rdma/a", up); got != healthy {
			t.Errorf("after boot %s %d units are healthy, want %d", boot, got, healthy)
		}
		if boot == "b1" && len(next.Snapshot()("rdma/a", "0")) != 1 || !slices.Contains(layout.Units, before) {
			t.Errorf("units %v", layout.Units)
		}
		if err := layouts.Save("rdma/a", layout); err != nil {
			t.Fatal(err)
		}
	}
}
