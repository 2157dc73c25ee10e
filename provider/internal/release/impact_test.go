package release

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompareFindsObjectsThatUpgradeChanges(t *testing.T) {
	daemonSet := func(name, container, image string) string {
		return fmt.Sprintf(
			"---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: %[1]s}\nspec:\n  selector: {matchLabels: {app: %[1]s}}\n  template:\n   "+
				" metadata: {labels: {app: %[1]s}}\n    spec: {containers: [{name: %[2]s, image: %[3]s}]}\n",
			name,
			container,
			image,
		)
	}
	const settings = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: %q}\n"
	have := daemonSet(
		"gpu",
		"gpu-plugin",
		"x:1",
	) + daemonSet(
		"rdma",
		"rdma-plugin",
		"x:1",
	) + daemonSet(
		"other",
		"other",
		"y:1",
	) + fmt.Sprintf(
		settings,
		"1",
	)
	gpu := Touched{Workload: "DaemonSet ns/gpu", Driver: "gpu.nvidia.com"}
	rdma := Touched{Workload: "DaemonSet ns/rdma", Driver: "rdma.gpufabric.io"}
	for _, c := range []struct {
		name, want string
		impact     Impact
	}{
		{"the same manifest touches nothing", have, Impact{}},
		{"a setting restarts nothing", daemonSet("gpu", "gpu-plugin", "x:1") + daemonSet("rdma", "rdma-plugin", "x:1") +
			daemonSet("other", "other", "y:1") + fmt.Sprintf(settings, "2"), Impact{}},
		{"another image restarts its workload only", daemonSet("gpu", "gpu-plugin", "x:2") + daemonSet("rdma", "rdma-plugin", "x:1") +
			daemonSet("other", "other", "y:1"), Impact{Restarted: []Touched{gpu}}},
		{"a component switched off is removed", daemonSet("gpu", "gpu-plugin", "x:1") + daemonSet("other", "other", "y:1"),
			Impact{Removed: []Touched{rdma}}},
		{"what is new touches nothing", have + daemonSet("new", "new", "z:1"), Impact{}},
		{"a workload that runs no driver names none", daemonSet("gpu", "gpu-plugin", "x:1") + daemonSet("rdma", "rdma-plugin", "x:1") +
			daemonSet("other", "other", "y:2"), Impact{Restarted: []Touched{{Workload: "DaemonSet ns/other"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := compare(have, c.want, "ns")
			if diff := cmp.Diff(c.impact, got); diff != "" || err != nil {
				t.Error(diff, err)
			}
		})
	}
}
