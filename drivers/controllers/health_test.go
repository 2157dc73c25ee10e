package controllers

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// queues are the work queues of two controllers, as controller-runtime reports them.
func queues(domains, pools float64) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: longestRunning}, []string{"name", "controller"})
	gauge.WithLabelValues("computedomain", "computedomain").Set(domains)
	gauge.WithLabelValues("rdmapool", "rdmapool").Set(pools)
	registry.MustRegister(gauge)
	return registry
}

func TestHealthFailsWhenAControllerIsStuck(t *testing.T) {
	for _, test := range []struct {
		name           string
		domains, pools float64
		problem        string
	}{
		{"idle", 0, 0, ""},
		{"busy", 20, longestReconcile.Seconds(), ""},
		{"stuck", 1, longestReconcile.Seconds() + 1, "controller rdmapool has been in one reconciliation for 5m1s, where 5m0s is allowed"},
	} {
		err := moving(queues(test.domains, test.pools))()
		if got := errorText(err); got != test.problem {
			t.Errorf("%s: %q, want %q", test.name, got, test.problem)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// controller-runtime defines the series' name: a version that names it otherwise must not disable the check unnoticed.
func TestHealthReadsExistingSeries(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[string](),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "health-test"})
	defer queue.ShutDown()
	queue.Add("an object")
	queue.Get()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		families, err := ctrlmetrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() != longestRunning {
				continue
			}
			for _, series := range family.GetMetric() {
				for _, label := range series.GetLabel() {
					if label.GetName() == "name" && label.GetValue() == "health-test" && series.GetGauge().GetValue() > 0 {
						return
					}
				}
			}
		}
	}
	t.Errorf("controller-runtime has no series %s of a queue whose work is in progress", longestRunning)
}
