// Package bydemand tests MIG layouts by demand on a simulated cluster: the scheduler, the controller and the GPU plugins, on machines
// whose GPUs are offered whole at first.
package bydemand

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

const nodes = 2

// shared is the package's cluster.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) {
	mode := fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS"))
	os.Exit(fixture.Main(m, &shared, fixture.Options{Nodes: nodes, Mode: mode, Values: map[string]any{
		"computeDomains": map[string]any{"enabled": false},
		"gpus":           map[string]any{"enabled": true, "layoutsByDemand": true},
	}}, fixture.Published("gpu.nvidia.com", nodes)))
}

// TestPodsOfAllShapesComeAndGoWithoutRefusal fills the eight GPUs with pods of three MIG profiles and whole GPUs, ends them in another
// order, and does so again in another mix. A pod whose claim prepare refuses never runs.
func TestPodsOfAllShapesComeAndGoWithoutRefusal(t *testing.T) {
	n := shared.Namespace(t)
	n.Apply(`
apiVersion: gpufabric.io/v1alpha1
kind: MIGLayout
metadata: {name: by-demand}
spec:
  auto:
    shapes: [{profile: whole}, {profile: 1g.23gb}, {profile: 2g.47gb}, {profile: 3g.93gb}]
`)
	n.Template("whole", "gpu.nvidia.com", "")
	for _, profile := range []string{"1g", "2g", "3g"} {
		n.Template(profile, "mig.nvidia.com", fmt.Sprintf("device.attributes['gpu.nvidia.com'].profile.startsWith('%s.')", profile))
	}
	for round, mix := range [][]string{
		{"1g", "2g", "3g", "whole", "1g", "1g", "2g", "whole"},
		{"whole", "whole", "whole", "3g", "3g", "1g"},
		{"1g", "1g", "1g", "1g", "2g", "2g", "whole", "whole", "3g"},
	} {
		var pods []string
		for i, shape := range mix {
			name := fmt.Sprintf("round-%d-%d", round, i)
			n.ClaimPod(name, "", shape)
			pods = append(pods, name)
		}
		for _, name := range pods {
			n.AwaitPod(name, fixture.Running)
		}
		devices := map[string]string{}
		for _, name := range pods {
			for _, result := range n.Allocated(name) {
				at := result.Pool + "/" + result.Device
				if other := devices[at]; other != "" {
					t.Errorf("%s and %s both have %s", name, other, at)
				}
				devices[at] = name
			}
		}
		for i := range pods {
			n.DeletePod(pods[(i*5)%len(pods)]) // another order than they came in; five has no divisor in common with the rounds
		}
	}
	events, err := shared.Client.CoreV1().Events(n.Name).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "ResourceClaim" {
			t.Errorf("%s: %s", e.Reason, e.Message)
		}
	}
}
