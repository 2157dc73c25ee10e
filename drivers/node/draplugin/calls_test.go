package draplugin

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpufabric.io/drivers/node/atomicfile"
)

func TestPluginMeasuresCallsAndFailures(t *testing.T) {
	const prepare, unprepare = drapb.DRAPlugin_NodePrepareResources_FullMethodName, drapb.DRAPlugin_NodeUnprepareResources_FullMethodName
	unreachable := errors.New("the API server is away")
	for name, c := range map[string]struct {
		method string
		err    error
		calls  map[string]uint64  // by operation
		errors map[string]float64 // by operation and reason
	}{
		"a prepare":    {method: prepare, calls: map[string]uint64{"prepare": 1}},
		"an unprepare": {method: unprepare, calls: map[string]uint64{"unprepare": 1}},
		"a claim that cannot be read": {prepare, unreachable, map[string]uint64{"prepare": 1},
			map[string]float64{"prepare ClaimNotRead": 1}},
		"a call that comes too late": {unprepare, fmt.Errorf("plugin x: %w", errStopped), map[string]uint64{"unprepare": 1},
			map[string]float64{"unprepare Stopped": 1}},
		"a call that is none of a claim's":     {method: "/grpc.health.v1.Health/Check"},
		"the same, and its failure is its own": {method: "/grpc.health.v1.Health/Check", err: unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir(), atomicfile.Writer{})
			answer, err := b.observeCall(t.Context(), "question", &grpc.UnaryServerInfo{FullMethod: c.method},
				func(_ context.Context, request any) (any, error) {
					return fmt.Sprintf("answer to %v", request), c.err
				})
			if answer != "answer to question" || !errors.Is(err, c.err) {
				t.Errorf("the kubelet gets %v, %v", answer, err)
			}
			calls, failed := map[string]uint64{}, map[string]float64{}
			families, err := b.config.Metrics.Registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				for _, metric := range family.Metric {
					label := labels(metric)
					switch family.GetName() {
					case "gpufabric_claim_step_seconds":
						if label["step"] == "call" {
							calls[label["operation"]] = metric.Histogram.GetSampleCount()
						}
					case "gpufabric_claim_errors_total":
						failed[label["operation"]+" "+label["reason"]] = metric.Counter.GetValue()
					}
				}
			}
			if c.calls == nil {
				c.calls = map[string]uint64{}
			}
			if c.errors == nil {
				c.errors = map[string]float64{}
			}
			if diff := cmp.Diff(c.calls, calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.errors, failed); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func labels(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range metric.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}
