package plugin

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

func TestTheStateOfTheDevicesIsLoggedWhenItChanges(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	selection := &pool.Selection{Pools: []pool.Pool{{Members: []pool.Member{{HCA: &inventory.HCA{}}}}}}
	now := picture{devicePlugin: true, devices: &inventory.Inventory{}, selection: selection}
	var j journal
	j.write(log, now)
	j.write(log, now)
	if len(lines) != 1 {
		t.Errorf("the same twice is logged as %q", lines)
	}
	now.exclusive = true
	j.write(log, now)
	if len(lines) != 3 || !strings.Contains(lines[2], "A pool's units cannot be opened") {
		t.Errorf("after the mode changed: %q", lines)
	}
}
