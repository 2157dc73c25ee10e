//go:build causes

package causes

import (
	"flag"
	"os"
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const (
	nodes       = 4
	gpusPerNode = 4
	// grace is how long a silent node counts as alive; in Kubernetes it is 50 s.
	grace = 8 * time.Second
	// healing bounds the wait for a healthy cluster after a cause was undone.
	healing = 2 * time.Minute
)

// shared is the cluster into which every cause is put.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

// page is docs/reports/causes.md, if the table is to be written there; empty: it is only printed.
var page = flag.String("page", "", "file whose table of causes is to be written again") //nolint:gochecknoglobals // a flag

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(fixture.Main(m, &shared, fixture.Options{Nodes: nodes, Mode: fabric.AsProcesses, NodeGrace: grace, Values: values()}))
}

// values are the chart's values. They enable every part, have rules that contradict each other on nodes with a certain label,
// and discover RDMA devices every two seconds.
func values() map[string]any {
	rule := func(forms map[string]any) map[string]any {
		forms["nodeSelector"] = map[string]any{"matchLabels": map[string]any{contradictory: "true"}}
		return forms
	}
	return map[string]any{
		"gpus": map[string]any{"enabled": true, "forms": map[string]any{
			"nodes": []any{rule(map[string]any{"form": "shareable"}), rule(map[string]any{"form": "whole"})},
		}},
		"rdma": map[string]any{"enabled": true, "devicePlugin": false,
			"config": map[string]any{"periodicUpdateInterval": 2, "configList": []any{map[string]any{
				"resourceName": "unused", "rdmaHcaMax": 1, "selectors": map[string]any{"deviceIDs": []any{"ffff"}}}}}},
	}
}

// contradictory is the label of a node that two rules of values select.
const contradictory = "causes.example.com/contradictory"
