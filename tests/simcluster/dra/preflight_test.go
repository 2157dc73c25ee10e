package dra

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/node/host"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/manifests"
)

// preflightOf runs `gpufabric doctor preflight` in a namespace.
func preflightOf(t *testing.T, namespace string, more ...string) []byte {
	t.Helper()
	values := fabric.Values()
	values["image"] = map[string]any{"repository": fabric.Repository, "tag": "test"}
	values["gpus"] = map[string]any{"enabled": true}
	values["rdma"] = map[string]any{"enabled": true}
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	command := doctor.Command(host.Host{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" },
		RESTConfig: func() (*rest.Config, error) { return rest.CopyConfig(shared.Config), nil }})
	command.SetArgs(append([]string{"preflight", "--values", file, "--system-namespace", namespace, "--request-timeout=2m",
		"--timeout=5m"}, more...))
	command.SilenceUsage, command.SilenceErrors = true, true
	var status *doctor.StatusError
	if err := command.ExecuteContext(t.Context()); err != nil && (!errors.As(err, &status) || status.Message != "") {
		t.Fatalf("preflight %v: %v\n%s", more, err, out.String())
	}
	return out.Bytes()
}

// awaitJobs waits until every Job of a namespace is complete.
func awaitJobs(t *testing.T, namespace string, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	list := cache.NewListWatchFromClient(shared.Client.BatchV1().RESTClient(), "jobs", namespace, fields.Everything())
	complete := map[string]bool{}
	if _, err := watchtools.UntilWithSync(ctx, list, &batchv1.Job{}, nil, func(event watch.Event) (bool, error) {
		if job, ok := event.Object.(*batchv1.Job); ok && job.Status.Succeeded > 0 {
			complete[job.Name] = true
		}
		return len(complete) == count, nil
	}); err != nil {
		pods, _ := shared.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}) // the failure is reported already
		for i := range pods.Items {
			t.Logf("pod %s on %s: %s %+v", pods.Items[i].Name, pods.Items[i].Spec.NodeName, pods.Items[i].Status.Phase,
				pods.Items[i].Status.ContainerStatuses)
		}
		t.Fatalf("of %d Jobs these are complete: %v: %v", count, complete, err)
	}
}

// The Jobs run as they would on a cluster: by the Job controller and the scheduler, in pods that see their node's hardware.
func TestPreflightJobsReportTheirNodes(t *testing.T) {
	n := shared.Namespace(t)
	// On one node no kernel module is loaded.
	lacking := 2
	loaded := filepath.Join(fabric.HardwareOf(cluster.NodeDir(shared.Dir, lacking)), "proc/driver/nvidia/version")
	if err := os.Rename(loaded, loaded+".aside"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Rename(loaded+".aside", loaded); err != nil {
			t.Error(err)
		}
	})
	jobs, err := manifests.Parse(preflightOf(t, n.Name, "--print-jobs"))
	if err != nil || len(jobs) != nodes {
		t.Fatalf("%d Jobs for %d nodes are printed: %v", len(jobs), nodes, err)
	}
	for _, object := range jobs {
		if _, err := n.Manifests.Objects().Resource(batchv1.SchemeGroupVersion.WithResource("jobs")).Namespace(n.Name).Create(t.Context(), object,
			metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			t.Fatal(err)
		}
	}
	awaitJobs(t, n.Name, nodes)
	var checks []preflight.Check
	if err := json.Unmarshal(preflightOf(t, n.Name, "--output=json"), &checks); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, c := range checks {
		said[c.Code] += fmt.Sprintf("%s: %s; ", c.Name, c.Detail)
	}
	if got := said["DriverNotLoaded"]; !bytes.Contains([]byte(got), []byte(cluster.NodeName(lacking)+" (")) ||
		bytes.Contains([]byte(got), []byte(cluster.NodeName(0))) {
		t.Errorf("of the drivers it says %q; of all: %v", got, said)
	}
	t.Logf("%+v", checks)
}
