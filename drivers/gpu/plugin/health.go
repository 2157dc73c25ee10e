package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/health"
)

// faultGauge is a prometheus.Collector of the present faults.
type faultGauge struct{ monitor *health.Monitor }

func (faultGauge) description() *prometheus.Desc {
	return prometheus.NewDesc("gpufabric_gpu_faults", "Faults that stand on a GPU, by kind; fatal ones keep new claims away.",
		[]string{"uuid", "kind", "fatal"}, nil)
}

// Describe implements prometheus.Collector.
func (g faultGauge) Describe(out chan<- *prometheus.Desc) { out <- g.description() }

// Collect implements prometheus.Collector.
func (g faultGauge) Collect(out chan<- prometheus.Metric) {
	type labels struct{ uuid, kind, fatal string }
	standing := map[labels]int{}
	for _, f := range g.monitor.Faults() {
		standing[labels{f.GPU, string(f.Kind), yesNo(f.Fatal)}]++
	}
	for l, n := range standing {
		out <- prometheus.MustNewConstMetric(g.description(), prometheus.GaugeValue, float64(n), l.uuid, l.kind, l.fatal)
	}
}

func yesNo(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

// servedPreparer is the device kind together with its health, for which the kubelet uses a service of its own.
type servedPreparer struct {
	*claims.Preparer
	*healthServer
}

const (
	// healthPeriod is how often health is sent without a change. healthTimeout is when the kubelet must treat it as unknown.
	healthPeriod  = 20 * time.Second
	healthTimeout = 60 * time.Second
)

var _ drahealth.DRAResourceHealthServer = (*healthServer)(nil)

// healthServer reports the health of every device to the kubelet.
type healthServer struct {
	drahealth.UnimplementedDRAResourceHealthServer

	kind    *claims.Preparer
	monitor *health.Monitor
	pool    string
}

// NodeWatchResources sends the health of all devices at once, on every change, and often enough to keep it valid for the kubelet.
func (s *healthServer) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest,
	stream drahealth.DRAResourceHealth_NodeWatchResourcesServer) error {
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	for {
		hardware, hardwareChanged := s.kind.Watch()
		faults, faultsChanged := s.monitor.Watch()
		if err := stream.Send(s.all(hardware.Pool, faults)); err != nil {
			return err
		}
		select {
		case <-hardwareChanged:
		case <-faultsChanged:
		case <-ticker.C:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *healthServer) all(pool *devices.Pool, faults []health.Fault) *drahealth.NodeWatchResourcesResponse {
	now := time.Now().Unix()
	response := &drahealth.NodeWatchResourcesResponse{}
	for _, d := range pool.Devices() {
		h := &drahealth.DeviceHealth{
			Device:          &drahealth.DeviceIdentifier{PoolName: s.pool, DeviceName: d.Name()},
			Health:          drahealth.HealthStatus_HEALTHY,
			LastUpdatedTime: now, HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second),
		}
		for _, f := range faults {
			if f.Touches(d) {
				h.Message = f.Message
				if f.Fatal {
					h.Health = drahealth.HealthStatus_UNHEALTHY
					break
				}
			}
		}
		response.Devices = append(response.Devices, h)
	}
	return response
}
