package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/tests/simcluster/process"
)

// requests reads how many requests the API server has answered, by verb and resource; watches count when they end.
func requests(ctx context.Context, client kubernetes.Interface) (map[string]float64, error) {
	body, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	counts := map[string]float64{}
	for _, metric := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if labels["resource"] == "" || labels["resource"] == "leases" { // health checks and heartbeats go by time
			continue
		}
		name := labels["resource"]
		if labels["subresource"] != "" {
			name += "/" + labels["subresource"]
		}
		counts[labels["verb"]+" "+name] += metric.GetCounter().GetValue()
	}
	return counts, nil
}

func difference(after, before map[string]float64) map[string]float64 {
	grown := map[string]float64{}
	for name, count := range after {
		if more := count - before[name]; more > 0 {
			grown[name] = more
		}
	}
	return grown
}

// memory reads what one process of each role takes, in MiB; the cluster's mode says which roles are processes.
func (m *measurement) memory() (map[string]float64, error) {
	running, err := process.Find(m.options.Dir)
	if err != nil {
		return nil, err
	}
	sizes := map[string]float64{}
	for _, p := range running {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid))
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(line), "\x00")
		role := p.Name
		field := "VmRSS"
		if strings.HasSuffix(args[0], "gpufabric") && len(args) > 1 {
			if role = args[1]; role == "controller" {
				field = "VmHWM"
			}
		}
		size, err := statusKiB(p.Pid, field)
		if err != nil {
			continue
		}
		// Of several of a role (the shards of nodes) the largest.
		sizes[role] = max(sizes[role], size/1024)
	}
	return sizes, nil
}

// statusKiB reads a size from /proc/PID/status.
func statusKiB(pid int, field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}
