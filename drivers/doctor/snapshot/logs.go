package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// maxLogs bounds how many pods' logs are read, linesOfLog and bytesOfLog how much of each.
	maxLogs    = 24
	linesOfLog = 1000
	bytesOfLog = 256 << 10
)

// Logs reads the last lines of gpufabric's own pods, those that are not ready first. A log that cannot be read is a file that says why.
func (r *Reader) Logs(ctx context.Context, s *Snapshot) ([]File, error) {
	client, err := kubernetes.NewForConfig(r.config)
	if err != nil {
		return nil, fmt.Errorf("make a client for logs: %w", err)
	}
	var own []*corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Labels["app.kubernetes.io/name"] == "gpufabric" || p.Labels["resource.nvidia.com/computeDomain"] != "" {
			own = append(own, p)
		}
	}
	slices.SortStableFunc(own, func(a, b *corev1.Pod) int { return cmp.Compare(ready(a), ready(b)) })
	var files []File
	lines, bytes := int64(linesOfLog), int64(bytesOfLog)
	for _, p := range own[:min(len(own), maxLogs)] {
		content, err := client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines, LimitBytes: &bytes}).DoRaw(ctx)
		if err != nil {
			content = fmt.Appendf(nil, "the log was not read: %v\n", err)
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
