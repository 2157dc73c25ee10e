package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// volcanoJobCRD lets the API server accept Volcano's Jobs. It is a fake: it has the group, the version and the names, and validates
// no content.
const volcanoJobCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: jobs.batch.volcano.sh}
spec:
  group: batch.volcano.sh
  scope: Namespaced
  names: {kind: Job, listKind: JobList, plural: jobs, singular: job, shortNames: [vcjob, vj]}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// volcanoJob has the fields of a Job that the double reads.
type volcanoJob struct {
	Metadata struct{ Name, Namespace, UID string }
	Spec     struct {
		SchedulerName string
		Tasks         []struct {
			Name     string
			Replicas int
			Template struct {
				Metadata struct{ Labels, Annotations map[string]string }
				Spec     map[string]any
			}
		}
	}
}

// playVolcanosJobController plays Volcano's controller for an existing Job. It makes the pods of each task, named and annotated as
// Volcano's are where the job's own manifest or the scheduler reads it. It makes no PodGroup, so no gang waits, and ignores
// policies, plugins and queues. It returns the pods' names.
func (e *environment) playVolcanosJobController(t *testing.T, name string) []string {
	t.Helper()
	var job volcanoJob
	e.get(t, &job, "jobs.batch.volcano.sh", name)
	var names []string
	for _, task := range job.Spec.Tasks {
		for i := range task.Replicas {
			pod := fmt.Sprintf("%s-%s-%d", job.Metadata.Name, task.Name, i)
			names = append(names, pod)
			annotations := map[string]string{"volcano.sh/job-name": name, "volcano.sh/task-spec": task.Name, "volcano.sh/task-index": fmt.Sprint(i),
				"scheduling.k8s.io/group-name": name + "-" + job.Metadata.UID}
			for key, value := range task.Template.Metadata.Annotations {
				annotations[key] = value
			}
			labels := map[string]string{"volcano.sh/job-name": name, "volcano.sh/task-spec": task.Name}
			for key, value := range task.Template.Metadata.Labels {
				labels[key] = value
			}
			spec := map[string]any{"schedulerName": job.Spec.SchedulerName}
			for key, value := range task.Template.Spec {
				spec[key] = value
			}
			manifest, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": map[string]any{
				"name": pod, "namespace": job.Metadata.Namespace, "labels": labels, "annotations": annotations,
				"ownerReferences": []any{map[string]any{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": job.Metadata.UID,
					"controller": true}}}})
			must(t, err)
			_, err = e.Kubectl(t.Context(), strings.NewReader(string(manifest)), "create", "--filename", "-")
			must(t, err)
		}
	}
	return names
}

// testVolcanoJob runs the seed's Job without changing a byte, with doubles instead of Volcano's CRD and controller and our scheduler
// under Volcano's name.
func testVolcanoJob(t *testing.T, e *environment) {
	e.apply(t, volcanoJobCRD)
	e.served(t, "jobs.batch.volcano.sh")
	e.apply(t, e.file(t, "examples/manifests/volcano-vgpu-job.yaml"))
	pods := e.playVolcanosJobController(t, "simple-vgpu-training")
	if len(pods) != 3 {
		t.Fatalf("the job has the pods %v, want three", pods)
	}
	// Each trains for a minute and requests a CPU. On a small machine any one of them may wait until another has ended.
	seen := map[string]bool{}
	for range pods {
		e.eventually(t, "one more pod of the job to run", func(ctx context.Context) (bool, string, error) {
			var all strings.Builder
			for i, pod := range pods {
				if seen[pod] {
					continue
				}
				out, err := e.Kubectl(ctx, nil, "get", "pod", pod, "--output",
					`jsonpath={.status.containerStatuses[0].ready} {.metadata.annotations.volcano\.sh/vgpu-ids-new}`)
				fmt.Fprintf(&all, "%s: %s; ", pod, out)
				ready, devices, _ := strings.Cut(out, " ")
				if err != nil || ready != "true" {
					continue
				}
				env, err := e.Kubectl(ctx, nil, "exec", pod, "--", "env")
				if err != nil {
					return false, all.String(), err
				}
				seen[pod] = true
				uuid, _, _ := strings.Cut(devices, ",")
				if !has(env, "CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "NVIDIA_VISIBLE_DEVICES="+uuid, fmt.Sprintf("VC_TASK_INDEX=%d", i)) {
					t.Errorf("%s has not its share of %s or not its index:\n%s", pod, uuid, env)
				}
				return true, "", nil
			}
			return false, all.String(), nil
		})
	}
	for i, pod := range pods {
		e.kubectl(t, "wait", "pod/"+pod, "--for=jsonpath={.status.phase}=Succeeded", inTime)
		if log := e.kubectl(t, "logs", pod); !has(log, fmt.Sprintf("Worker %d started with vGPU", i),
			fmt.Sprintf("Worker %d finished training!", i)) {
			t.Errorf("%s says:\n%s", pod, log)
		}
	}
	e.kubectl(t, "delete", "jobs.batch.volcano.sh/simple-vgpu-training", "--cascade=foreground", inTime)
}
