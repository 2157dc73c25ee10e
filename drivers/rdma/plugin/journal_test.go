package plugin

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

func TestJournalLogsChangesOfDevices(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	selection := &pool.Selection{Pools: []pool.Pool{{Members: []pool.Member{{HCA: &inventory.HCA{}}}}}}
	selection.Pools[0].RDMAHCAMax = 1
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

func TestJournalNamesPoolWithoutAllocatableUnits(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	selection := &pool.Selection{Pools: []pool.Pool{{Members: []pool.Member{{HCA: &inventory.HCA{}}}}}}
	new(journal).write(log, picture{devicePlugin: true, devices: &inventory.Inventory{}, selection: selection})
	if text := strings.Join(lines, "\n"); !strings.Contains(text, "set rdmaHcaMax") {
		t.Error(text)
	}
}

func TestJournalNamesValuesThatDoNotSelectADevice(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	selection := &pool.Selection{Pools: []pool.Pool{{Definition: pool.Definition{Source: "config.json configList[0]"},
		Members: []pool.Member{{HCA: &inventory.HCA{}}}, Unmatched: []v1alpha1.RDMAValue{{Path: "selectors.vendors[1]", Text: "15b4"}}}}}
	new(journal).write(log, picture{devices: &inventory.Inventory{}, selection: selection})
	text := strings.Join(lines, "\n")
	if !strings.Contains(text, `selectors.vendors[1] \"15b4\"`) || !strings.Contains(text, "configList[0]") {
		t.Error(text)
	}
}
