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
		if labels["resource"] == "" || labels["resource"] == "leases" { // health checks and heartbeats depend on time
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

// shards names, among roles, the processes that play the nodes.
const shards = "nodes"

// use is what the processes of each role use. The cluster's mode reports which roles are processes.
type use struct {
	// memory is resident, in MiB: of several processes of a role that of the largest, and of the shards of nodes the sum.
	memory map[string]float64
	// processor is the time that all processes of a role have had since they began, in seconds.
	processor map[string]float64
}

// used reads what the processes of each role use now.
func (m *measurement) used() (use, error) {
	running, err := process.Find(m.options.Dir)
	if err != nil {
		return use{}, err
	}
	u := use{memory: map[string]float64{}, processor: map[string]float64{}}
	for _, p := range running {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid))
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(line), "\x00")
		role := p.Name
		field := "VmRSS"
		if (p.Name == "gpufabric" || p.Name == "gpufabric-node") && len(args) > 1 {
			if role = args[1]; role == "controller" {
				field = "VmHWM"
			}
		}
		size, err := statusKiB(p.Pid, field)
		if err != nil {
			continue
		}
		seconds, err := processorTime(p.Pid)
		if err != nil {
			continue
		}
		if len(args) > 1 && args[1] == shards {
			role = shards
			u.memory[role] += size / 1024
		}
		u.memory[role] = max(u.memory[role], size/1024)
		u.processor[role] += seconds
	}
	return u, nil
}

// processorTime reads from /proc/PID/stat how many seconds of processor time a process had: fields 14 and 15, in ticks, of which Linux has
// a hundred a second for programs (proc(5), USER_HZ).
func processorTime(pid int) (float64, error) {
	const before, ticks = 11, 100
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, and may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < before+2 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields after the program's name, want at least %d", pid, len(fields), before+2)
	}
	total := 0.0
	for _, field := range fields[before : before+2] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		total += n / ticks
	}
	return total, nil
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
