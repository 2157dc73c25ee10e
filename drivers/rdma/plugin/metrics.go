package plugin

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
)

// scrapePatience bounds how long one scrape waits for the counters (a read queries the firmware and hangs with it) and the kubelet.
// It omits devices whose answer is late, and gpufabric_rdma_scrape_complete shows that.
const scrapePatience = 3 * time.Second

// metricsView is the data for the metrics. Any goroutine may call its functions.
type metricsView struct {
	Devices *inventory.Inventory
	State   func(health.Key) health.State
	// Unit returns the HCAs of a unit of an extended resource, and Device the ports of a DRA device; nil: there is none.
	Unit   func(resource, id string) []*inventory.HCA
	Device func(name string) []health.Key
}

// portMetrics are the metrics of a node's RDMA ports: state, rate and counters, and which pods have them. It is a prometheus.Collector.
type portMetrics struct {
	sysfs   infiniband.FS
	holders func() ([]holder, error)
	view    atomic.Pointer[metricsView]
	busy    atomic.Bool // a read of counters has not returned
}

// newPortMetrics makes the metrics of ports in the sysfs tree at root. The kubelet at kubeletRoot has their holders.
func newPortMetrics(root, kubeletRoot string) *portMetrics {
	kubelet := &podResources{socket: kubeletRoot + "/pod-resources/kubelet.sock"}
	return &portMetrics{sysfs: infiniband.NewFS(root), holders: kubelet.holders}
}

// Set replaces the exported devices.
func (e *portMetrics) Set(v metricsView) { e.view.Store(&v) }

// The descriptions of the metrics.
type descriptions struct {
	info, up, state, rate, transmitted, received, counter, pod, complete *prometheus.Desc
}

func describe() descriptions {
	metric := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gpufabric_rdma_"+name, help, labels, nil)
	}
	return descriptions{
		info: metric("port_info", "A port of an RDMA device; always 1.", "device", "port", "interface", "pci", "link_layer", "firmware",
			"psid"),
		up: metric("port_up", "Whether a port can carry traffic: 1, or 0. Debounced; this is what pods are scheduled by.", "device",
			"port"),
		state: metric("port_phase", "1 for the phase that a port is in: Up, Failing, Down, Recovering or Unknown.", "device", "port",
			"phase"),
		rate:        metric("port_rate_bytes_per_second", "A port's rate in bytes a second, as it was at the last discovery.", "device", "port"),
		transmitted: metric("port_transmitted_bytes_total", "Bytes that a port sent.", "device", "port"),
		received:    metric("port_received_bytes_total", "Bytes that a port received.", "device", "port"),
		counter:     metric("port_events_total", "Any other counter of a port, by its name in sysfs.", "device", "port", "counter"),
		pod: metric("port_pod_info", "A container that holds a port, or shares it; always 1.", "device", "port", "namespace", "pod",
			"container", "resource"),
		complete: metric("scrape_complete", "Whether counters and holders could be read for this scrape: 1, or 0.", "part"),
	}
}

// Describe implements prometheus.Collector.
func (e *portMetrics) Describe(out chan<- *prometheus.Desc) {
	d := describe()
	for _, desc := range []*prometheus.Desc{d.info, d.up, d.state, d.rate, d.transmitted, d.received, d.counter, d.pod, d.complete} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (e *portMetrics) Collect(out chan<- prometheus.Metric) {
	view := e.view.Load()
	if view == nil {
		return // Before the first discovery.
	}
	d := describe()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for i := range view.Devices.HCAs {
		h := &view.Devices.HCAs[i]
		for _, p := range h.Ports {
			port := strconv.Itoa(p.Number)
			name := ""
			if len(p.Nets) > 0 {
				name = p.Nets[0].Name
			}
			phase := view.State(health.Key{Device: h.Name, Port: p.Number}).Phase
			gauge(d.info, 1, h.Name, port, name, string(h.PCI), string(p.LinkLayer), h.Firmware, h.BoardID)
			gauge(d.up, number(phase.Healthy()), h.Name, port)
			gauge(d.state, 1, h.Name, port, string(phase))
			gauge(d.rate, p.Rate*1e9/8, h.Name, port)
		}
	}
	counters := e.counters(view)
	gauge(d.complete, number(counters != nil), "counters")
	for _, c := range counters {
		desc, value, labels := d.counter, float64(c.value), []string{c.device, c.port, c.name}
		switch c.name {
		case "port_xmit_data":
			desc, value, labels = d.transmitted, value*bytesPerUnit, labels[:2]
		case "port_rcv_data":
			desc, value, labels = d.received, value*bytesPerUnit, labels[:2]
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
	}
	holders, err := e.holders()
	gauge(d.complete, number(err == nil), "holders")
	seen := make(map[holder]map[health.Key]bool)
	for _, holder := range holders {
		for _, key := range holder.ports(view) {
			labels := holder.without()
			if seen[labels] == nil {
				seen[labels] = make(map[health.Key]bool)
			}
			if seen[labels][key] {
				continue // The container has several units of the same HCA.
			}
			seen[labels][key] = true
			gauge(d.pod, 1, key.Device, strconv.Itoa(key.Port), holder.Namespace, holder.Pod, holder.Container, holder.Resource)
		}
	}
}

// bytesPerUnit is the unit of the data counters: the InfiniBand architecture counts words of four bytes.
const bytesPerUnit = 4

// counter is one value of one port.
type counter struct {
	device, port, name string
	value              uint64
}

// counters reads the counters of all ports; nil: they could not be read in time.
func (e *portMetrics) counters(view *metricsView) []counter {
	if !e.busy.CompareAndSwap(false, true) {
		return nil // The read of an earlier scrape still hangs.
	}
	result := make(chan []counter, 1)
	go func() { // Ends when sysfs answers; busy keeps a second one from starting.
		defer e.busy.Store(false)
		all := []counter{}
		for i := range view.Devices.HCAs {
			h := &view.Devices.HCAs[i]
			for _, p := range h.Ports {
				for name, value := range e.sysfs.Counters(h.Path, p.Number) {
					all = append(all, counter{h.Name, strconv.Itoa(p.Number), name, value})
				}
			}
		}
		result <- all
	}()
	select {
	case all := <-result:
		return all
	case <-time.After(scrapePatience):
		return nil
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
