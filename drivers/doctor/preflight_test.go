package doctor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/rdma/apiservertest"
)

// strict makes the API server refuse unknown fields.
func strict() metav1.CreateOptions {
	return metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
}

// create creates what `doctor preflight --print-jobs` printed, as kubectl create would, and returns the Jobs as the server has them.
func create(t *testing.T, c kubernetes.Interface, printed string) []*batchv1.Job {
	t.Helper()
	var jobs []*batchv1.Job
	for document := range strings.SplitSeq(strings.TrimPrefix(printed, "---\n"), "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		var err error
		switch kind.Kind {
		case "Namespace":
			var n corev1.Namespace
			if err = yaml.UnmarshalStrict([]byte(document), &n); err == nil {
				_, err = c.CoreV1().Namespaces().Create(t.Context(), &n, strict())
			}
		case "Job":
			var j batchv1.Job
			if err = yaml.UnmarshalStrict([]byte(document), &j); err == nil {
				var made *batchv1.Job
				made, err = c.BatchV1().Jobs(j.Namespace).Create(t.Context(), &j, strict())
				jobs = append(jobs, made)
			}
		default:
			t.Fatalf("a document of kind %q:\n%s", kind.Kind, document)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
	}
	return jobs
}

// finish plays the Job controller, the scheduler and a kubelet for a Job, up to what kubectl wait waits for: its pod runs on the
// node that its affinity names, and ends.
func finish(t *testing.T, c kubernetes.Interface, job *batchv1.Job, facts preflight.Facts) {
	t.Helper()
	template := job.Spec.Template
	node := template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: job.Name + "-x", Namespace: job.Namespace, Labels: template.Labels},
		Spec: template.Spec}
	pod.Spec.NodeName = node
	pod, err := c.CoreV1().Pods(job.Namespace).Create(t.Context(), pod, strict())
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "machine", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(facts.Encode())}}}}
	if _, err := c.CoreV1().Pods(job.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestPreflightIncludesFindingsOfTheJobs(t *testing.T) {
	config := apiservertest.Start(t)
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2"} {
		if _, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.0", ContainerRuntimeVersion: "containerd://2.1.0", OperatingSystem: "linux",
				Architecture: "amd64"}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	text := "image: {repository: example.invalid/gpufabric, tag: '1'}\ngpus: {enabled: true}\n"
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(more ...string) (string, int) {
		t.Helper()
		out, status, err := run(t, config, append([]string{"preflight", "--values", values, "--request-timeout=2m", "--timeout=5m"}, more...)...)
		if status == 1 {
			t.Fatalf("%v: %v\n%s", more, err, out)
		}
		return out, status
	}
	if out, status := ask(); status != 0 || !strings.Contains(out, "--print-jobs") {
		t.Errorf("before the Jobs: %d\n%s", status, out)
	}
	printed, status := ask("--print-jobs")
	jobs := create(t, c, printed)
	if status != 0 || len(jobs) != 2 || !strings.HasPrefix(jobs[0].Name, "gpufabric-preflight-") || jobs[0].Name == jobs[1].Name {
		t.Fatalf("%d Jobs were made of\n%s", len(jobs), printed)
	}
	good := preflight.Facts{GPUs: 8, Nodes: 8, Driver: "580.95.05", Channels: 2048}
	finish(t, c, jobs[0], good)
	finish(t, c, jobs[1], preflight.Facts{GPUs: 8, Trouble: "DriverNotLoaded", Says: "no kernel module is loaded"})
	out, status := ask("--output", "json")
	var checks []preflight.Check
	if err := json.Unmarshal([]byte(out), &checks); err != nil || status != 12 {
		t.Fatalf("%d %v\n%s", status, err, out)
	}
	failing := preflight.Failing(checks)
	if len(failing) != 1 || failing[0].Code != "DriverNotLoaded" || !strings.Contains(failing[0].Detail, "n2 (no kernel module is loaded)") ||
		failing[0].Entry != "docs/troubleshooting.md#drivernotloaded" {
		t.Errorf("%+v", failing)
	}
	if out, _ := ask(); !strings.Contains(out, "docs/troubleshooting.md#drivernotloaded") || !strings.Contains(out, "2 of 2 nodes") {
		t.Errorf("the table leads nowhere:\n%s", out)
	}
	// A second request creates new Jobs, but no second namespace.
	printed, _ = ask("--print-jobs")
	again := create(t, c, printed)
	if strings.Contains(printed, "kind: Namespace") || len(again) != 2 {
		t.Errorf("asked again it prints\n%s", printed)
	}
}
