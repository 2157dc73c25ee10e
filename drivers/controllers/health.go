package controllers

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// longestReconcile is far longer than a reconciliation takes: each waits only for the API server, and a client notices its silence
// within a minute.
const longestReconcile = 5 * time.Minute

// longestRunning is controller-runtime's metric of the oldest running reconciliation of a controller, in seconds.
const longestRunning = "workqueue_longest_running_processor_seconds"

// moving fails while a controller hangs in one reconciliation, which a restart would end. A controller on standby runs none.
func moving(gatherer prometheus.Gatherer) func() error {
	return func() error {
		families, err := gatherer.Gather()
		if err != nil {
			return fmt.Errorf("read the controllers' work queues: %w", err)
		}
		for _, family := range families {
			if family.GetName() != longestRunning {
				continue
			}
			for _, series := range family.GetMetric() {
				took := time.Duration(series.GetGauge().GetValue() * float64(time.Second))
				if took <= longestReconcile {
					continue
				}
				labels := map[string]string{}
				for _, label := range series.GetLabel() {
					labels[label.GetName()] = label.GetValue()
				}
				return fmt.Errorf("controller %s has been in one reconciliation for %s, where %s is allowed", labels["name"],
					took.Round(time.Second), longestReconcile)
			}
		}
		return nil
	}
}
