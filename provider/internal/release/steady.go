package release

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A container that crashes again and again is Ready, and its workload available, for a moment each time. So a restarted container
// counts once it has run for steadyFor, and one without a readiness probe once it has run for startFor.
const (
	steadyFor = 10 * time.Second
	startFor  = 3 * time.Second
)

// unsteady checks the pods of workloads that count as rolled out. It reports which have not run long enough, and after how long to
// check again.
func (m *Manager) unsteady(ctx context.Context, list []workload) (waiting []string, again time.Duration, err error) {
	now := time.Now()
	for _, w := range list {
		pods, err := m.podsOf(ctx, w)
		if err != nil {
			return nil, 0, err
		}
		for i := range pods {
			why, rest := unsteadyPod(&pods[i], now)
			if why != "" {
				waiting = append(waiting, w.String()+": "+why)
				again = max(again, rest)
			}
		}
	}
	return waiting, again, nil
}

// unsteadyPod reports why a pod does not count yet, and for how much longer.
func unsteadyPod(p *corev1.Pod, now time.Time) (why string, rest time.Duration) {
	if p.DeletionTimestamp != nil {
		return "", 0
	}
	probed := map[string]bool{}
	for _, c := range p.Spec.Containers {
		probed[c.Name] = c.ReadinessProbe != nil
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running == nil || (c.RestartCount == 0 && probed[c.Name]) {
			continue // for a pod that does not run the workload's own status is enough
		}
		wanted := startFor
		if c.RestartCount > 0 {
			wanted = steadyFor
		}
		left := wanted - now.Sub(c.State.Running.StartedAt.Time)
		if left <= 0 || left < rest {
			continue
		}
		rest, why = left, fmt.Sprintf("pod %s: container %s has only just started", p.Name, c.Name)
		if c.RestartCount > 0 {
			why = fmt.Sprintf("pod %s: container %s restarted %d times", p.Name, c.Name, c.RestartCount)
			if last := c.LastTerminationState.Terminated; last != nil {
				why += fmt.Sprintf(", last with exit code %d (%s)", last.ExitCode, last.Reason)
			}
			why += fmt.Sprintf("; it counts when it has run for %s", steadyFor)
		}
	}
	return why, rest
}
