package plugin

import "testing"

func TestHolderKeyIsHCAForEveryPoolName(t *testing.T) {
	for _, id := range []string{"0000:3b:00.0", "0000:3b:00.2/mlx5_core.sf.4", "mlx5_0", "rxe0"} {
		if former, now := holderKey("rdma/rail_a", id), holderKey("rdma/rail_b", id); former != now {
			t.Errorf("%s: %s, and %s under another name of the pool", id, former, now)
		}
	}
	if a, b := holderKey("rdma/a", "7"), holderKey("rdma/b", "7"); a == b {
		t.Errorf("units of two shared pools have one name: %s", a)
	}
}
