package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	helm "helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const testChart = "../provider/testdata/stack"

func TestChartOfADirectoryAndOfItsArchiveHaveOneDigest(t *testing.T) {
	loaded, err := loader.Load(testChart)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := chartutil.Save(loaded, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	fromDirectory, err := Load(t.Context(), testChart)
	if err != nil {
		t.Fatal(err)
	}
	fromArchive, err := Load(t.Context(), archive)
	if err != nil {
		t.Fatal(err)
	}
	if fromDirectory.Digest != fromArchive.Digest {
		t.Errorf("directory %s, archive %s", fromDirectory.Digest, fromArchive.Digest)
	}
}

func TestValuesThatTheChartRefusesTogetherAreFoundWithoutACluster(t *testing.T) {
	chart, err := Load(t.Context(), "../../../charts/gpufabric")
	if err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string]string{
		"{}": "",
		"{gpus: {enabled: true}, vgpu: {enabled: true}}": "",
		"{computeDomains: {enabled: false}}": "nothing is enabled: set at least one of " +
			"computeDomains.enabled",
		"{vgpu: {enabled: true}}": "vgpu.enabled needs gpus.enabled: slices are cut",
		"{gpus: {enabled: true, devicePlugin: [all]}, vgpu: {enabled: true}}":            "want the same GPUs",
		"{scheduler: {enabled: true, name: default-scheduler}}":                          "scheduler.name is default-scheduler",
		"{rdma: {enabled: true, nriSocket: /run/nri, plugin: {hostNetwork: false}}}":     "rdma.nriSocket needs rdma.plugin.hostNetwork",
		"{rdma: {enabled: true, nriSocket: /run/nri, plugin: {hostNetwork: \"maybe\"}}}": "/rdma/plugin/hostNetwork",
		"{gpus: {enabled: true, forms: {default: {form: shareable}, nodes: [{nodeSelector: {matchLabels: {a: b}}, form: mig, migProfiles: " +
			"[1g.10gb]}]}}}": "",
		"{gpus: {enabled: true, forms: {default: {form: half}}}}": "/gpus/forms/default/form",
		"{gpus: {enabled: true, forms: {default: {form: mig}}}}": "gpus.forms.default: form mig " +
			"needs migProfiles",
		"{gpus: {enabled: true, forms: {default: {form: shares, shares: 4}}}}":                                "",
		"{gpus: {enabled: true, forms: {default: {form: shares}}}}":                                           "form shares needs shares",
		"{gpus: {enabled: true, forms: {nodes: [{form: shareable}]}}}":                                        "/gpus/forms/nodes/0",
		"{gpus: {enabled: true, forms: {nodes: [{nodeSelector: {matchLabels: {a: b}}, form: whole, x: 1}]}}}": "/gpus/forms/nodes/0",
	} {
		parsed, err := ParseValues(values)
		if err != nil {
			t.Fatal(err)
		}
		if err := chart.CheckValues(parsed); want == "" && err != nil ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "templates/")) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}

func TestDigestChangesWithEveryFile(t *testing.T) {
	before, err := Load(t.Context(), testChart)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"Chart.yaml", "values.yaml", "values.schema.json", "templates/all.yaml"} {
		t.Run(file, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(testChart)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.NewReplacer(
				"1.0.0",
				"1.0.1",
				"replicas: 1",
				"replicas: 2",
				`"minimum": 0`,
				`"minimum": 1`,
				"cpu: 1000m",
				"cpu: 2000m",
			).Replace(
				string(text),
			)
			if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			after, err := Load(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if after.Digest == before.Digest {
				t.Error("the digest stayed")
			}
		})
	}
}

func TestMergeValuesReplacesListsAndMergesMappings(t *testing.T) {
	first, second := map[string]any{
		"a": map[string]any{"x": 1, "y": 2},
		"l": []any{1, 2},
	}, map[string]any{
		"a": map[string]any{"y": 3},
		"l": []any{9},
	}
	got := Flatten(MergeValues([]map[string]any{first, second}))
	if diff := cmp.Diff(map[string]string{"a.x": "1", "a.y": "3", "l[0]": "9"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"x": 1, "y": 2}, first["a"]); diff != "" {
		t.Errorf("the first document was changed: %s", diff)
	}
}

func TestFlattenListsEveryValueByPath(t *testing.T) {
	got := Flatten(
		map[string]any{
			"a":    map[string]any{"b": true, "empty": map[string]any{}},
			"l":    []any{map[string]any{"k": "v"}, []any{}},
			"n":    1.5,
			"null": nil,
		},
	)
	want := map[string]string{"a.b": "true", "a.empty": "{}", "l[0].k": "v", "l[1]": "[]", "n": "1.5", "null": "null"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCustomResourcesAreSortedByRemover(t *testing.T) {
	crd := func(name, policy string) string {
		return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: " + name +
			"\n  annotations: {helm.sh/resource-policy: " + policy + "}\n"
	}
	r := &Release{
		Manifest: "---\n" + crd("kept", "keep") + "---\n" + crd("gone", "delete"),
		stored:   &helm.Release{Hooks: []*helm.Hook{{Manifest: crd("hook", "x")}}},
	}
	removed, left, err := r.customResources()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]string{{"gone"}, {"hook", "kept"}}, [][]string{removed, left}); diff != "" {
		t.Error(diff)
	}
}

func TestPodTrouble(t *testing.T) {
	pod := func(status corev1.PodStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}, Status: status}
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"a ready pod has none", pod(corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}),
			""},
		{"an image that cannot be pulled", pod(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}}),
			"pod p on n: container c: ImagePullBackOff: no such image"},
		{"a container that failed", pod(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}}}}),
			"pod p on n: container c exited with 3 (Error)"},
		{"a pod that finds no node", pod(corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}}),
			"pod p on n is not scheduled: 0/3 nodes are available"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := PodTrouble(c.pod); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
