package deviceplugin

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of a Host. Register its Collectors.
type Metrics struct {
	devices       *prometheus.GaugeVec
	registrations *prometheus.CounterVec
	sends         *prometheus.CounterVec
	allocations   *prometheus.CounterVec
}

// NewMetrics makes the metrics, not registered anywhere.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gpufabric", Subsystem: "device_plugin", Name: name, Help: help},
			labels)
	}
	return &Metrics{
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "gpufabric", Subsystem: "device_plugin", Name: "devices", Help: "Devices offered to the kubelet, by resource and health.",
		}, []string{"resource", "health"}),
		registrations: counter("registrations_total", "Registrations that the kubelet accepted: one, and one more for each of its restarts.",
			"resource"),
		sends: counter("list_sends_total", "Lists of devices sent to the kubelet: one a stream, and one more for each change.",
			"resource"),
		allocations: counter("allocations_total", "Containers given devices, by resource and result (ok, error).", "resource", "result"),
	}
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.devices, m.registrations, m.sends, m.allocations}
}

// forget drops the series of a resource that is no longer served.
func (m *Metrics) forget(resource string) {
	m.devices.DeletePartialMatch(prometheus.Labels{"resource": resource})
}
