package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gruntwork-io/terratest/modules/terraform"

	"gpufabric.io/tests/kindcluster"
)

var runs = flag.Int("runs", 0, "how often TestFiguresAreMeasuredInKind makes a cluster and measures in it")

// TestFiguresAreMeasuredInKind measures what docs/reports/measurements.md reports. Each run begins without a cluster. Times include the
// start of kubectl or terraform, about a tenth of a second, because a person waits for it.
func TestFiguresAreMeasuredInKind(t *testing.T) {
	if *runs == 0 {
		t.Skip("skipped: a measurement, not a test; run it with -run TestFiguresAreMeasuredInKind -runs 10 (a minute a run)")
	}
	figures := &figures{}
	for run := range *runs {
		t.Run(fmt.Sprint("run ", run+1), func(t *testing.T) { figures.measure(t) })
		if t.Failed() {
			return
		}
		// After every run, so that an interrupted measurement still has results.
		figures.write(t)
	}
}

// write writes the table to a file.
func (f *figures) write(t *testing.T) {
	t.Helper()
	table := f.table()
	t.Logf("\n%s", table)
	path := filepath.Join("..", "logs", "figures.md")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(table), 0o644))
}

// figures are durations by the step's name, in the order in which they were first taken.
type figures struct {
	names []string
	times map[string][]time.Duration
}

func (f *figures) add(name string, took time.Duration) {
	if f.times == nil {
		f.times = map[string][]time.Duration{}
	}
	if f.times[name] == nil {
		f.names = append(f.names, name)
	}
	f.times[name] = append(f.times[name], took)
}

// clock times what is done.
func (f *figures) clock(name string, do func()) {
	started := time.Now()
	do()
	f.add(name, time.Since(started))
}

// measure makes one cluster and does once what a user does in it.
func (f *figures) measure(t *testing.T) {
	must(t, kindcluster.Down(t.Context(), clusterName))
	e := newEnvironment(t)
	f.add("kind: no cluster to three nodes ready, images cached", e.Took)
	stack := quickstart(t, e)
	terraform.Init(t, stack)
	f.clock("`terraform apply` of the quickstart: chart installed, drivers running, domain accepted", func() { terraform.Apply(t, stack) })

	seed := e.file(t, "examples/manifests/imex-channel-injection.yaml")
	f.clock("seed manifest (a domain of one node and its pod) applied to pod running", func() {
		e.apply(t, seed)
		e.kubectl(t, "wait", "pod/imex-channel-injection", "--for=condition=Ready", inTime)
	})
	f.clock("the same deleted", func() {
		e.kubectl(t, "delete", "pod/imex-channel-injection", "computedomain/imex-channel-injection", inTime)
	})

	const domain = `{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: pair}, spec: {numNodes: 2, channel: ` +
		`{resourceClaimTemplate: {name: pair}}}}`
	started := time.Now()
	e.apply(t, domain+"\n---\n"+memberOf("pair-a", e.Workers()[0], "pair")+"---\n"+memberOf("pair-b", e.Workers()[1], "pair"))
	e.kubectl(t, "wait", "computedomain/pair", "--for=jsonpath={.status.status}=Ready", inTime)
	f.add("domain of two nodes created, with its pods, to domain ready", time.Since(started))
	e.kubectl(t, "wait", "pod/pair-a", "pod/pair-b", "--for=condition=Ready", inTime)
	f.add("domain of two nodes created, with its pods, to both pods running", time.Since(started))
	e.kubectl(t, "delete", "pod/pair-a", "pod/pair-b", "computedomain/pair", inTime)

	f.clock("`terraform destroy` of the quickstart", func() { terraform.Destroy(t, stack) })
}

// table writes the figures for a document.
func (f *figures) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| what | runs | median | maximum |\n|---|---|---|---|\n")
	for _, name := range f.names {
		times := slices.Sorted(slices.Values(f.times[name]))
		fmt.Fprintf(&b, "| %s | %d | %.1f s | %.1f s |\n", name, len(times), median(times).Seconds(), times[len(times)-1].Seconds())
	}
	fmt.Fprintf(&b, "\n%d CPUs, %s, %s.\n", runtime.NumCPU(), runtime.Version(), time.Now().Format(time.DateOnly))
	return b.String()
}

// median of times in ascending order.
func median(times []time.Duration) time.Duration {
	middle := len(times) / 2
	if len(times)%2 == 1 {
		return times[middle]
	}
	return (times[middle-1] + times[middle]) / 2
}
