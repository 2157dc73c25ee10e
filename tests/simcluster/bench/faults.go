package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
)

// gpusPerNode is what a node of the profile has.
const gpusPerNode = 4

// sliceWatch counts what happens to ResourceSlices, and sees health taints by this process's clock.
type sliceWatch struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu            sync.Mutex
	changed, gone int
	tainted       map[string]time.Time // by node: when a GPU was first seen with a taint of its health
	told          chan struct{}        // holds a token when tainted grew
}

// watchSlices begins a watch, and returns when it has seen what there is.
func (m *rolesMeasurement) watchSlices(ctx context.Context) (*sliceWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &sliceWatch{cancel: cancel, tainted: map[string]time.Time{}, told: make(chan struct{}, 1)}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(m.client.ResourceV1().RESTClient(), "resourceslices", "", fields.Everything()),
		ObjectType:    &resourceapi.ResourceSlice{},
		Handler: cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(object any, initial bool) { w.saw(object, !initial) },
			UpdateFunc: func(_, object any) { w.saw(object, true) },
			DeleteFunc: func(any) {
				w.mu.Lock()
				w.gone++
				w.mu.Unlock()
			},
		},
		// Otherwise hundreds of megabytes of devices would be kept only for their names.
		Transform: func(object any) (any, error) {
			if slice, ok := object.(*resourceapi.ResourceSlice); ok {
				slice.ManagedFields, slice.Spec.SharedCounters = nil, nil
				for i := range slice.Spec.Devices {
					d := &slice.Spec.Devices[i]
					slice.Spec.Devices[i] = resourceapi.Device{Name: d.Name, Taints: d.Taints}
				}
			}
			return object, nil
		},
	})
	w.running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		w.stop()
		return nil, context.Cause(ctx)
	}
	return w, nil
}

func (w *sliceWatch) stop() {
	w.cancel()
	w.running.Wait()
}

func (w *sliceWatch) counts() (changed, gone int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed, w.gone
}

func (w *sliceWatch) saw(object any, change bool) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !change {
		return
	}
	w.changed++
	if slice.Spec.NodeName == nil || !w.tainted[*slice.Spec.NodeName].IsZero() {
		return
	}
	for _, d := range slice.Spec.Devices {
		for _, taint := range d.Taints {
			if strings.HasPrefix(taint.Key, "gpu.nvidia.com/") {
				w.tainted[*slice.Spec.NodeName] = now
				select {
				case w.told <- struct{}{}:
				default:
				}
				return
			}
		}
	}
}

// fail makes a hundredth of the cluster's GPUs fall off the bus within a minute, evenly in time and each on another node. It
// waits until all are tainted.
func (m *rolesMeasurement) fail(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, errors.New("not every failed GPU was tainted in time"))
	defer cancel()
	slices, err := m.watchSlices(ctx)
	if err != nil {
		return err
	}
	defer slices.stop()
	m.roles.Faults = min(m.roles.Nodes, max(1, m.roles.Nodes*gpusPerNode/100))
	failed := map[string]time.Time{}
	begin := time.Now()
	for i := range m.roles.Faults {
		node := i * m.roles.Nodes / m.roles.Faults
		failed[cluster.NodeName(node)] = time.Now()
		arguments := fault.Arguments{"gpu": strconv.Itoa(i % gpusPerNode)}
		if err := fault.Apply(fabric.HardwareOf(cluster.NodeDir(m.options.Dir, node)), "gpu-lost", arguments); err != nil {
			return fmt.Errorf("have a GPU of %s fail: %w", cluster.NodeName(node), err)
		}
		if err := sleep(ctx, within/time.Duration(m.roles.Faults)); err != nil {
			return err
		}
	}
	for {
		slices.mu.Lock()
		seen := 0
		for node := range failed {
			if !slices.tainted[node].IsZero() {
				seen++
			}
		}
		slices.mu.Unlock()
		if seen == len(failed) {
			break
		}
		select {
		case <-slices.told:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d failed GPUs are tainted: %w", seen, len(failed), context.Cause(ctx))
		}
	}
	end := time.Now()
	slices.mu.Lock()
	var noticed []float64
	for node, at := range failed {
		noticed = append(noticed, slices.tainted[node].Sub(at).Seconds())
	}
	slices.mu.Unlock()
	m.roles.Noticed, m.roles.HealthTime = sorted(noticed), end.Sub(begin).Seconds()
	m.roles.Health.Seconds = m.roles.HealthTime
	m.roles.Health.SlicesChanged, m.roles.Health.SlicesGone = slices.counts()
	return m.tally(ctx, &m.roles.Health, begin, end)
}

func jsonSize(object any) (int, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return 0, fmt.Errorf("encode the published devices: %w", err)
	}
	return len(text), nil
}
