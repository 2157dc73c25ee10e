package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// measure fills a part of the cluster, makes pods, and removes all of it.
func (c *cluster) measure(ctx context.Context, m *Machine, row Row, fill float64) (r Result, err error) {
	r = Result{Row: row.Name, Nodes: len(c.nodes), Fill: fill, Slices: len(c.slices), Taken: time.Now().UTC().Truncate(time.Second)}
	if r.Load, err = load(); err != nil {
		return r, err
	}
	for _, s := range c.slices {
		r.Devices += len(s.Spec.Devices)
		r.Bytes += s.Size()
	}
	defer func() {
		if cleanErr := c.clean(ctx, "", ""); err == nil {
			err = cleanErr
		}
	}()
	batch := c.options.Pods
	if row.class != "" {
		free, err := c.fill(ctx, m, row, fill)
		if err != nil {
			return r, fmt.Errorf("fill the cluster: %w", err)
		}
		batch = min(batch, max(free-1, 1)) // the pod that runs first keeps its device
	}
	// When this pod is bound, the scheduler has started and has read the cluster.
	if err := c.warm(ctx, row); err != nil {
		return r, err
	}
	if c.options.Batch > 0 {
		batch = min(batch, c.options.Batch)
	}
	profiled := c.profile(ctx, row, &r)
	t := timing{limit: time.Now().Add(c.options.Limit)}
	for {
		from := c.made
		if err := c.time(ctx, row, min(batch, c.options.Pods-t.pods), &t); err != nil {
			return r, err
		}
		t.batches++
		if t.pods >= c.options.Pods || len(t.latencies) < t.pods || time.Now().After(t.limit) {
			break
		}
		if err := c.clean(ctx, fmt.Sprintf("pod-%06d", from), fmt.Sprintf("pod-%06d", c.made)); err != nil {
			return r, err
		}
	}
	if err := <-profiled; err != nil {
		return r, err
	}
	slices.Sort(t.latencies)
	r.Pods, r.Bound, r.Batches, r.Seconds = t.pods, len(t.latencies), t.batches, t.seconds
	if r.Bound > 0 {
		r.P50, r.P99 = t.latencies[r.Bound/2], t.latencies[r.Bound*99/100]
		r.CPU = t.processor.Seconds() / float64(r.Bound)
	}
	r.Memory, err = resident(c.plane.Process("kube-scheduler").Pid())
	return r, err
}

// timing is the sum over the batches of a measurement.
type timing struct {
	limit         time.Time
	pods, batches int
	seconds       float64
	latencies     []float64
	processor     time.Duration
}

// binding is a pod that was bound.
type binding struct {
	pod string
	at  time.Time
}

// watch reports when each pod is bound that is made from now on.
func (c *cluster) watch(ctx context.Context) (<-chan binding, func(), error) {
	out := make(chan binding, 20000) // more than pods are ever made at once
	first := fmt.Sprintf("pod-%06d", c.made)
	var mu sync.Mutex
	seen := map[types.UID]bool{}
	look := func(object any) {
		pod, ok := object.(*corev1.Pod)
		mu.Lock()
		defer mu.Unlock()
		if ok && pod.Spec.NodeName != "" && pod.Name >= first && !seen[pod.UID] {
			seen[pod.UID] = true
			out <- binding{pod.Name, time.Now()}
		}
	}
	pods := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(namespace)).Core().V1().Pods().Informer()
	handler := cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, object any) { look(object) }}
	if _, err := pods.AddEventHandler(handler); err != nil {
		return nil, nil, fmt.Errorf("watch the pods: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { pods.RunWithContext(ctx) })
	stop := func() { cancel(); running.Wait() }
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		stop()
		return nil, nil, fmt.Errorf("watch the pods: %w", context.Cause(ctx))
	}
	return out, stop, nil
}

// time makes some pods and waits until they are bound, or the limit is over.
func (c *cluster) time(ctx context.Context, row Row, pods int, t *timing) error {
	bound, stop, err := c.watch(ctx)
	if err != nil {
		return err
	}
	defer stop()
	pid := c.plane.Process("kube-scheduler").Pid()
	before, err := processorTime(pid)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	made := map[string]time.Time{}
	first := time.Now()
	writing := make(chan error, 1)
	go func() { // The code below waits for its end.
		writing <- c.make(ctx, row, pods, func(name string, at time.Time) {
			mu.Lock()
			defer mu.Unlock()
			if len(made) == 0 || at.Before(first) {
				first = at
			}
			made[name] = at
		})
	}()
	var at []binding
	limit := time.After(time.Until(t.limit))
wait:
	for len(at) < pods {
		select {
		case b := <-bound:
			at = append(at, b)
		case <-limit:
			break wait
		}
	}
	end := time.Now()
	after, err := processorTime(pid)
	if err := errors.Join(err, <-writing); err != nil {
		return err
	}
	for _, b := range at {
		if began, ok := made[b.pod]; ok {
			t.latencies = append(t.latencies, b.at.Sub(began).Seconds())
		}
	}
	t.pods += pods
	t.seconds += end.Sub(first).Seconds()
	t.processor += after - before
	return nil
}
