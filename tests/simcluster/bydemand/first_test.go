package bydemand

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/fixture"
)

var firsts = flag.Int("firsts", 0, "how many first pods of each shape TestFirstPodOfAShape measures") //nolint:gochecknoglobals // a flag

// gpus is how many GPUs the nodes have together.
const gpus = nodes * 4

var miglayouts = schema.GroupVersionResource{ //nolint:gochecknoglobals // a constant
	Group: "gpufabric.io", Version: "v1alpha1", Resource: "miglayouts"}

// undivided makes the GPUs of all nodes whole, by hand: the nodes have no layouts by demand meanwhile.
const undivided = `
apiVersion: gpufabric.io/v1alpha1
kind: MIGLayout
metadata: {name: undivided}
spec: {layout: whole, config: {version: v1, mig-configs: {whole: [{devices: all, mig-enabled: false}]}}}
`

// TestFirstPodOfAShape measures the seconds from a pod's creation until it runs: of a whole GPU that is free, of a MIG device from the
// reserve, and of each profile while all GPUs are whole. It logs them and asserts that the pods run.
func TestFirstPodOfAShape(t *testing.T) {
	if *firsts == 0 {
		t.Skip("skipped: it measures; give -firsts 20 (five minutes)")
	}
	n := shared.Namespace(t)
	n.Template("whole", "gpu.nvidia.com", "")
	for _, profile := range []string{"1g", "2g", "3g"} {
		n.Template(profile, "mig.nvidia.com", fmt.Sprintf("device.attributes['gpu.nvidia.com'].profile.startsWith('%s.')", profile))
	}
	for _, test := range []struct{ name, shape, reserve string }{
		{"a whole GPU", "whole", ""},
		{"1g from the reserve", "1g", ", reserve: {min: 2, max: 4}"},
		{"1g, all GPUs whole", "1g", ""},
		{"2g, all GPUs whole", "2g", ""},
		{"3g, all GPUs whole", "3g", ""},
	} {
		var took []time.Duration
		for i := range *firsts {
			n.Apply(`
apiVersion: gpufabric.io/v1alpha1
kind: MIGLayout
metadata: {name: by-demand}
spec: {auto: {shapes: [{profile: whole}, {profile: 1g.23gb%s}, {profile: 2g.47gb}, {profile: 3g.93gb}]}}
`, test.reserve)
			await(t, "the nodes to follow their layouts", func(ctx context.Context) (bool, error) {
				return followed(ctx, test.reserve != "")
			})
			pod := fmt.Sprintf("%s-%d", test.shape, i)
			begin := time.Now()
			n.ClaimPod(pod, "", test.shape)
			n.AwaitPod(pod, fixture.Running)
			took = append(took, time.Since(begin))
			n.DeletePod(pod)
			n.Apply(undivided)
			await(t, "all GPUs to be whole", allWhole)
			for _, name := range []string{"by-demand", "undivided"} { // the next planner has counted no arrivals, so it keeps no reserve
				if err := n.Manifests.Objects().Resource(miglayouts).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		slices.Sort(took)
		t.Logf("measured: %s: p50 %.2f s, p95 %.2f s, of %d", test.name, took[len(took)/2].Seconds(), took[len(took)*95/100].Seconds(), len(took))
	}
}

func await(t *testing.T, thing string, done func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	if err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, done); err != nil {
		t.Fatalf("wait for %s: %v", thing, err)
	}
}

// published are the names of all devices in slices.
func published(ctx context.Context) ([]string, error) {
	found, err := shared.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=gpu.nvidia.com"})
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range found.Items {
		for _, d := range found.Items[i].Spec.Devices {
			names = append(names, d.Name)
		}
	}
	return names, nil
}

func isMIG(name string) bool { return strings.Contains(name, "-mig-") }

// allWhole reports whether every GPU is offered whole, by the layout by hand.
func allWhole(ctx context.Context) (bool, error) {
	names, err := published(ctx)
	if err != nil {
		return false, err
	}
	left, err := shared.Manifests.Objects().Resource(miglayouts).List(ctx, metav1.ListOptions{})
	return err == nil && len(left.Items) == 2 && len(names) == gpus && !slices.ContainsFunc(names, isMIG), err
}

// followed reports whether both nodes have a layout of their own that they have applied, and a reserve is published if there is one.
func followed(ctx context.Context, reserve bool) (bool, error) {
	names, err := published(ctx)
	if err != nil {
		return false, err
	}
	found, err := shared.Manifests.Objects().Resource(miglayouts).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	applied := 0
	for i := range found.Items {
		if strings.Contains(fmt.Sprint(found.Items[i].Object["status"]), "state:Applied") {
			applied++
		}
	}
	return applied >= nodes && slices.ContainsFunc(names, isMIG) == reserve, nil
}
