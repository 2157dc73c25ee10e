package sharing

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

var (
	daemonsDesc = prometheus.NewDesc("gpufabric_mps_daemons",
		"MPS control daemons that are kept running, by state: ready, or starting, in which one stays that cannot be set up.", []string{"state"},
		nil)
	endsDesc = prometheus.NewDesc("gpufabric_mps_daemon_failures_total",
		"MPS control daemons that ended by themselves, with which their clients' work was lost.", nil, nil)
)

var _ prometheus.Collector = (*MPS)(nil)

// Describe implements prometheus.Collector.
func (m *MPS) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- daemonsDesc
	descriptions <- endsDesc
}

// Collect implements prometheus.Collector.
func (m *MPS) Collect(collected chan<- prometheus.Metric) {
	ready, starting := 0, 0
	for _, settled := range m.states() {
		if settled {
			ready++
		} else {
			starting++
		}
	}
	collected <- prometheus.MustNewConstMetric(daemonsDesc, prometheus.GaugeValue, float64(ready), "ready")
	collected <- prometheus.MustNewConstMetric(daemonsDesc, prometheus.GaugeValue, float64(starting), "starting")
	collected <- prometheus.MustNewConstMetric(endsDesc, prometheus.CounterValue, float64(m.failures.Load()))
}

// states has, for each claim with a daemon, whether that is set up.
func (m *MPS) states() map[types.UID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[types.UID]bool{}
	for claim, d := range m.daemons {
		out[claim] = d.isSettled() && d.noted() == nil
	}
	return out
}
