package drain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/observed"
)

const (
	// deployLabels and pausedFor are how NVIDIA's GPU operator takes clients of the driver off a node: its DaemonSets select labels
	// nvidia.com/gpu.deploy.NAME=true, and k8s-driver-manager sets these to paused-for-driver-upgrade before it unloads the driver, a custom
	// value V to V_paused-for-driver-upgrade (maybeSetPaused of its cmd/driver-manager/main.go). mig-manager writes paused-for-mig-change.
	// Both set them back when they are done or have failed.
	deployLabels = "nvidia.com/gpu.deploy."
	pausedFor    = "paused-for-"

	// operatorPause is the time between two tries to drain a node whose labels stay.
	operatorPause = 10 * time.Second
)

// Pause is the request of NVIDIA's GPU operator that clients of the driver leave a node.
type Pause struct {
	// Known is false until the node was read.
	Known bool
	// By is the label with the request, as KEY=VALUE; empty: there is none.
	By string
	// Version is the Node's resource version at which that was first seen. The roles of a node see the labels at different times.
	Version string
}

// See updates pause from a state of the Node.
func See(pause *observed.Value[Pause], node *corev1.Node) {
	now, last := PauseOf(node.Labels), pause.Now()
	if now.Known != last.Known || now.By != last.By {
		now.Version = node.ResourceVersion
		pause.Set(now)
	}
}

// PauseOf reads a node's labels. Of several labels it names the first.
func PauseOf(labels map[string]string) Pause {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(key, deployLabels) && strings.Contains(labels[key], pausedFor) {
			return Pause{Known: true, By: key + "=" + labels[key]}
		}
	}
	return Pause{Known: true}
}

// WatchPause updates pause from the labels of a node until ctx ends. The deletion of the Node does not change it.
func WatchPause(ctx context.Context, client kubernetes.Interface, node string, pause *observed.Value[Pause]) error {
	nodes := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	}), informers.WithTransform(func(obj any) (any, error) {
		if n, is := obj.(*corev1.Node); is {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels}}, nil
		}
		return obj, nil
	})).Core().V1().Nodes().Informer()
	see := func(obj any) {
		if n, is := obj.(*corev1.Node); is && n.Name == node {
			See(pause, n)
		}
	}
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
		return fmt.Errorf("watch the labels of node %s: %w", node, err)
	}
	nodes.RunWithContext(ctx)
	return nil
}

// Operator makes a role drain its node while NVIDIA's GPU operator requests it. A drain of an administrator stays one. Several roles of
// a node may run it.
type Operator struct {
	Directory
	// Pause is the request in the node's labels.
	Pause *observed.Value[Pause]
	// Drain makes the node's roles close NVML, for the label with the request. It returns when they have. ctx ends when the labels change.
	Drain func(ctx context.Context, by string) error
	// Undrain lets them open it again.
	Undrain func() error

	mu     sync.Mutex
	active bool
	// followed is the last Pause that was followed completely.
	followed observed.Value[Pause]
}

// AllRoles returns an Operator of a role that has nothing to do itself: every role follows the phase.
func AllRoles(d Directory, pause *observed.Value[Pause]) *Operator {
	return &Operator{
		Directory: d, Pause: pause,
		Drain:   func(ctx context.Context, _ string) error { return d.begin(ctx) },
		Undrain: func() error { return d.Set(None) },
	}
}

// begin makes the roles of a node close NVML for a label, unless that is the phase already, or another role has ended the drain meanwhile.
func (d Directory) begin(ctx context.Context) error {
	return d.locked(ctx, func() error {
		phase, err := d.Phase()
		if err != nil || phase != None || d.By() == "" {
			return err
		}
		return d.Set(Draining)
	})
}

// Run follows the labels until ctx ends.
func (o *Operator) Run(ctx context.Context) {
	if o.Path == "" {
		return
	}
	for ctx.Err() == nil {
		pause, changed := o.Pause.Get()
		var again <-chan time.Time
		if err := o.turn(ctx, pause, changed); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not follow NVIDIA's GPU operator yet", "label", pause.By)
			again = time.After(operatorPause)
		} else {
			o.followed.Set(pause)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// turn drains or resumes by the labels, and is interrupted when they change.
func (o *Operator) turn(ctx context.Context, pause Pause, changed <-chan struct{}) error {
	if !pause.Known {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	})
	err := o.obey(ctx, pause)
	if ctx.Err() != nil {
		return nil // the labels have changed
	}
	return err
}

func (o *Operator) obey(ctx context.Context, pause Pause) error {
	if pause.By == "" {
		if o.read().by == "" && !o.isActive() {
			return nil
		}
		return o.locked(ctx, func() error { return o.resume(ctx, pause) })
	}
	mine := false
	err := o.locked(ctx, func() (err error) {
		mine, err = o.own(ctx, pause)
		return err
	})
	if err != nil || !mine {
		return err
	}
	o.setActive(true)
	klog.FromContext(ctx).Info("NVIDIA's GPU operator requests that clients of the driver leave the node", "label", pause.By)
	return o.Drain(ctx, pause.By)
}

// resume ends the drain for a label when no label pauses clients any more. It leaves alone a drain that an administrator has taken over,
// and one for a label that was set after the state of the Node that this role has seen: another role was faster.
func (o *Operator) resume(ctx context.Context, pause Pause) error {
	switch last := o.read(); {
	case last.by == administrator:
		o.setActive(false)
		return nil
	case last.by != "" && isOlder(pause.Version, last.version):
		return nil
	}
	klog.FromContext(ctx).Info("NVIDIA's GPU operator lets clients of the driver come back")
	if err := o.Undrain(); err != nil {
		return err
	}
	o.setActive(false)
	return o.forget()
}

// own records the label for which the node is drained. It returns false where an administrator has drained the node.
func (o *Operator) own(ctx context.Context, pause Pause) (mine bool, err error) {
	last := o.read()
	if last.by == "" || last.by == administrator {
		if phase, err := o.Phase(); phase != None {
			klog.FromContext(ctx).Info("An administrator drained the node before NVIDIA's GPU operator requested it", "label", pause.By)
			return false, err
		}
	}
	// Of a label that several roles have seen, the newest state of the Node counts: a role that is late must not end the drain.
	if last.by == pause.By && !isOlder(last.version, pause.Version) || isOlder(pause.Version, last.version) {
		return true, nil
	}
	return true, o.write(record{by: pause.By, version: pause.Version})
}

// isOlder reports whether one resource version is certainly older than another.
func isOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

func (o *Operator) isActive() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.active
}

func (o *Operator) setActive(active bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.active = active
}

// TakeOver makes the drain an administrator's, for all roles.
func (o *Operator) TakeOver(ctx context.Context) error {
	o.setActive(false)
	return o.Directory.TakeOver(ctx)
}

// Disown records that the node is not drained.
func (o *Operator) Disown(ctx context.Context) error {
	o.setActive(false)
	return o.Directory.Disown(ctx)
}
