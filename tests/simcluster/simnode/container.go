package simnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrKilled is the cause of a container's context when the container is to end at once, without an orderly end of its program.
var ErrKilled = errors.New("killed")

// ErrNotRunning means that the container has no running program to kill: it was killed before and has not been started again
// yet.
var ErrNotRunning = errors.New("no program runs")

// maxRestartBackoff is the kubelet's.
const maxRestartBackoff = 5 * time.Minute

// container is one container of a pod and its life.
type container struct {
	worker *worker
	spec   *corev1.Container
	run    Container // what the Runtime gets
	owned  bool      // whether it has a real program

	mu       sync.Mutex
	state    corev1.ContainerState
	last     corev1.ContainerState
	started  bool // its startup probe succeeded, or it has none
	ready    bool
	restarts int32
	kill     context.CancelCauseFunc // of the running program; nil while none runs
}

// live keeps the container running according to its pod's restart policy, until ctx is done.
func (c *container) live(ctx context.Context) {
	backoff := c.worker.node.config.RestartBackoff
	for {
		began := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			return
		}
		policy := c.worker.pod().Spec.RestartPolicy
		if policy == corev1.RestartPolicyNever || (policy == corev1.RestartPolicyOnFailure && err == nil) {
			return
		}
		if time.Since(began) > 2*c.worker.node.config.MaxRestartBackoff {
			backoff = c.worker.node.config.RestartBackoff
		}
		c.set(func() {
			c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s after: %v", backoff, err),
			}}
		})
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, c.worker.node.config.MaxRestartBackoff)
		c.set(func() { c.restarts++ })
	}
}

// runOnce runs an init container to its end.
func (c *container) runOnce(ctx context.Context) error {
	if !c.owned {
		return nil // an init container of another image counts as finished
	}
	return c.once(ctx)
}

// once runs the program until it ends, is killed, or ctx is done.
func (c *container) once(ctx context.Context) error {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	began := metav1.Now()
	c.set(func() {
		c.kill = kill
		c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}
		c.started = c.spec.StartupProbe == nil || !c.owned
		c.ready = c.started && (c.spec.ReadinessProbe == nil || !c.owned)
	})
	var err error
	if c.owned {
		err = c.program(ctx, kill)
	} else {
		<-ctx.Done()
	}
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, ErrKilled) {
		err = cause
	}
	ended := corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: began, FinishedAt: metav1.Now(), ContainerID: c.id()}
	if err != nil {
		ended.Reason, ended.ExitCode, ended.Message = "Error", 1, err.Error()
		if errors.Is(context.Cause(ctx), ErrKilled) { // a program that got the signal has its own error text
			ended.ExitCode = 137
		}
	}
	if said, failed := os.ReadFile(terminationLog(c.worker.dir, c.spec.Name)); failed == nil { // most containers say nothing
		ended.Message = string(said[:min(len(said), longestMessage)])
	}
	c.set(func() {
		c.kill = nil
		c.state = corev1.ContainerState{Terminated: &ended}
		c.last = c.state
		c.ready, c.started = false, false
	})
	return err
}

// longestMessage is how much of a container's termination message the kubelet puts into the status, in bytes.
const longestMessage = 4096

// terminationLog is the file that a container finds at its terminationMessagePath.
func terminationLog(dir, container string) string {
	return filepath.Join(dir, container+".termination")
}

// program runs the container's program with its probes beside it and its output appended to the pod's log.
func (c *container) program(ctx context.Context, kill context.CancelCauseFunc) error {
	log, err := os.OpenFile(filepath.Join(c.worker.dir, c.spec.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the container's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // a lost log line harms nothing
	run := c.run
	run.Output = log
	probing, stop := context.WithCancel(ctx)
	var probes sync.WaitGroup
	probes.Go(func() { c.probe(probing, run, kill) })
	err = c.worker.node.config.Runtime.Run(ctx, run)
	stop()
	probes.Wait()
	if err != nil && ctx.Err() == nil {
		_, _ = fmt.Fprintf(log, "container ended: %v\n", err)
	}
	return err
}

// crash ends the program at once. It reports whether a program ran that was not killed before. The caller may hold the worker's
// lock.
func (c *container) crash() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kill == nil {
		return false
	}
	c.kill(ErrKilled)
	c.kill = nil
	return true
}

// set changes the container's state and triggers a report.
func (c *container) set(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	c.worker.notify()
}

func (c *container) id() string { return "simulated://" + string(c.run.PodUID) + "/" + c.spec.Name }

func (c *container) status() corev1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.state
	if state == (corev1.ContainerState{}) {
		state.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	started := c.started
	return corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: "simulated://" + c.spec.Image, ContainerID: c.id(),
		State: state, LastTerminationState: c.last, Ready: c.ready, Started: &started, RestartCount: c.restarts,
	}
}
