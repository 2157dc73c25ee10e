package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

const (
	// maxLogs bounds the number of pods whose logs are read, linesOfLog and bytesOfLog the part of each.
	maxLogs    = 24
	linesOfLog = 1000
	bytesOfLog = 256 << 10
)

// Logs reads the last lines of gpufabric's own pods, first of those that are not ready. For a log that cannot be read it writes a
// file with the reason. Own pods are pods with gpufabric's labels in the namespaces of its Release.
func (r *Reader) Logs(ctx context.Context, s *Snapshot) ([]File, error) {
	client, err := kubernetes.NewForConfig(r.config)
	if err != nil {
		return nil, fmt.Errorf("make a client for logs: %w", err)
	}
	var own []*corev1.Pod
	for i := range s.Pods {
		p := &s.Pods[i]
		if s.Release.Has(p.Namespace) && (p.Labels[labelName] == ownName || p.Labels[v1beta1.LabelComputeDomain] != "") {
			own = append(own, p)
		}
	}
	slices.SortStableFunc(own, func(a, b *corev1.Pod) int { return cmp.Compare(ready(a), ready(b)) })
	var files []File
	lines, bytes := int64(linesOfLog), int64(bytesOfLog)
	for _, p := range own[:min(len(own), maxLogs)] {
		content, err := client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines, LimitBytes: &bytes}).DoRaw(ctx)
		if err != nil {
			content = fmt.Appendf(nil, "the log was not read: %s\n", WithoutAddress(err))
		}
		files = append(files, File{"logs/" + p.Namespace + "_" + p.Name + ".log", content})
	}
	return files, nil
}

func ready(p *corev1.Pod) int {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return 1
		}
	}
	return 0
}

// silence removes containers' output from pods that only have gpufabric's labels, and the arguments of such workloads: input and output of
// a tenant's program belong to the tenant.
func (s *Snapshot) silence() {
	for i := range s.Pods {
		p := &s.Pods[i]
		if s.Release.Has(p.Namespace) {
			continue
		}
		for _, statuses := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
			for i := range statuses {
				reduceStatus(&statuses[i], false)
			}
		}
	}
	for i := range s.DaemonSets {
		if d := &s.DaemonSets[i]; !s.Release.Has(d.Namespace) {
			withoutArguments(&d.Spec.Template)
		}
	}
	for i := range s.Deployments {
		if d := &s.Deployments[i]; !s.Release.Has(d.Namespace) {
			withoutArguments(&d.Spec.Template)
		}
	}
}

func withoutArguments(template *corev1.PodTemplateSpec) {
	for i := range template.Spec.Containers {
		template.Spec.Containers[i].Args = nil
	}
}
