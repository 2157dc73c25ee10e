package plugin_test

import (
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/hardware/uverbs"
	"gpufabric.io/drivers/rdma/plugin"
)

// hca is an HCA's events, which the test sends.
type hca struct {
	events chan uverbs.Event
	gone   chan struct{}
	once   sync.Once
}

func (h *hca) Next() (uverbs.Event, error) {
	select {
	case e := <-h.events:
		return e, nil
	case <-h.gone:
		return uverbs.Event{}, io.EOF
	}
}

func (h *hca) Close() error { h.once.Do(func() { close(h.gone) }); return nil }

// verbs opens HCAs and reports on opened what was opened, by device node and driver.
func verbs(n *node) (opened chan string, hcas map[string]*hca) {
	opened, hcas = make(chan string, 16), make(map[string]*hca)
	var mu sync.Mutex
	n.options.VerbsEvents = true
	n.options.OpenVerbs = func(path, driver string) (plugin.VerbsDevice, error) {
		mu.Lock()
		defer mu.Unlock()
		name := filepath.Base(path)
		h := &hca{events: make(chan uverbs.Event), gone: make(chan struct{})}
		hcas[name] = h
		opened <- name + " " + driver
		return h, nil
	}
	return opened, hcas
}

func next(t *testing.T, opened chan string) string {
	t.Helper()
	select {
	case name := <-opened:
		return name
	case <-time.After(time.Minute):
		t.Fatal("no HCA was opened")
		return ""
	}
}

func TestVerbsEventsReopenAnHCAButNotAVirtualOne(t *testing.T) {
	n := newNode(t)
	parent := "pci0000:3a/0000:3a:00.0"
	physical := sysfstest.Function{Parent: parent, Address: "0000:3b:00.0", TotalVFs: 4, VFs: 1}
	n.tree.AddHCA(sysfstest.HCA{Function: physical, Ethernet: true})
	n.tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: parent, Address: "0000:3b:00.1", Device: "0x101e",
		PhysFn: "devices/" + parent + "/0000:3b:00.0"}, Ethernet: true})
	n.configure(seed)
	opened, hcas := verbs(n)
	n.start()
	if got := next(t, opened); got != "uverbs0 mlx5_core" {
		t.Errorf("opened %s first", got)
	}
	_ = hcas["uverbs0"].Close() // Its driver was loaded again.
	if got := next(t, opened); got != "uverbs0 mlx5_core" {
		t.Errorf("opened %s after the HCA went", got)
	}
	n.stop() // It ends only when every device is closed.
	select {
	case <-hcas["uverbs0"].gone:
	default:
		t.Error("the HCA stayed open")
	}
}
