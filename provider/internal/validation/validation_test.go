package validation

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestBandwidthJobMatchesExample(t *testing.T) {
	example, err := os.ReadFile("../../../examples/manifests/nvbandwidth-test-job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(example, bandwidthManifest) {
		t.Error("bandwidth.yaml is not examples/manifests/nvbandwidth-test-job.yaml: copy it here")
	}
}

func TestObjectsFitTheCheck(t *testing.T) {
	at := func(obj *unstructured.Unstructured, path ...string) any {
		v, _, _ := unstructured.NestedFieldNoCopy(obj.Object, path...)
		return v
	}
	t.Run("ping", func(t *testing.T) {
		theDomain, job, err := Check{
			Test:      Ping,
			Namespace: "team",
			Name:      "p",
			Nodes:     18,
			Image:     "registry.example/bash",
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"row": "7"},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "In", Values: []string{"a", "b"}}}},
		}.objects()
		if err != nil {
			t.Fatal(err)
		}
		pod, _, _ := unstructured.NestedMap(job.Object, "spec", "template")
		got := []any{
			theDomain.GetNamespace(),
			theDomain.GetName(),
			at(theDomain, "spec", "numNodes"),
			at(job, "spec", "completions"),
			at(job, "spec", "parallelism"),
			container(pod)["image"],
			at(job, "spec", "template", "spec", "nodeSelector", "row"),
			at(job, "spec", "template", "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
				"nodeSelectorTerms"),
			at(job, "spec", "template", "metadata", "labels", checkLabel),
		}
		zone := map[string]any{"key": "zone", "operator": "In", "values": []any{"a", "b"}}
		if diff := cmp.Diff([]any{"team", "p", int64(18), int64(18), int64(18), "registry.example/bash", "7",
			[]any{map[string]any{"matchExpressions": []any{zone}}}, "p"}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("bandwidth", func(t *testing.T) {
		_, job, err := Check{Test: Bandwidth, Namespace: "team", Name: "b", Nodes: 3, GPUsPerNode: 8}.objects()
		if err != nil {
			t.Fatal(err)
		}
		launcher, _, _ := unstructured.NestedMap(job.Object, "spec", "mpiReplicaSpecs", "Launcher", "template")
		worker, _, _ := unstructured.NestedMap(job.Object, "spec", "mpiReplicaSpecs", "Worker", "template")
		if text := strings.Trim(strings.Join(words(container(launcher)["args"]), " "), " "); !strings.Contains(text, "ppr:8:node -np 24") {
			t.Errorf("the launcher runs mpirun %s, want 24 processes, 8 a node", text)
		}
		if got := at(job, "spec", "mpiReplicaSpecs", "Worker", "replicas"); got != int64(3) {
			t.Errorf("%v workers, want 3", got)
		}
		if got, _, _ := unstructured.NestedFieldNoCopy(container(worker), "resources", "limits", "nvidia.com/gpu"); got != int64(8) {
			t.Errorf("a worker asks for %v GPUs, want 8", got)
		}
		// The example leaves its env empty. The MPI operator's schema refuses null.
		if env, named := container(worker)["env"]; named {
			t.Errorf("a worker's env is %v, want none", env)
		}
	})
}

func words(list any) []string {
	var out []string
	for _, item := range list.([]any) {
		out = append(out, item.(string))
	}
	return out
}

func TestReadBandwidths(t *testing.T) {
	const header = "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n           0         1\n"
	for _, c := range []struct {
		name, output string
		want         Bandwidths
		wrong        string
	}{
		{"the slowest pair and the sum", header + " 0       N/A    798.02\n 1    700.50       N/A\n\nSUM " +
			"multinode_device_to_device_memcpy_read_ce 1498.52\n", Bandwidths{2, 700.5, 1498.52}, ""},
		{"a sum with separators", header + " 0       N/A    798.02\n 1    700.50       N/A\nSUM multinode_device_to_device_memcpy_read_ce " +
			"1,498.52\n", Bandwidths{2, 700.5, 1498.52}, ""},
		{"no sum says how the output ends", "ERROR: out of memory\n", Bandwidths{}, "it ended with: ERROR: out of memory"},
		{"a sum without a matrix", "SUM multinode_device_to_device_memcpy_read_ce 1498.52\n", Bandwidths{}, "without a matrix"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := readBandwidths(c.output)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("got %v, want an error with %q", err, c.wrong)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Error(diff, err)
			}
		})
	}
}
