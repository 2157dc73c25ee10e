package drain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/observed"
)

const (
	// deployLabels and pausedFor are how NVIDIA's GPU operator takes clients of the driver off a node: its DaemonSets select labels
	// nvidia.com/gpu.deploy.NAME=true, and k8s-driver-manager sets these to paused-for-driver-upgrade before it unloads the driver, a custom
	// value V to V_paused-for-driver-upgrade (maybeSetPaused of its cmd/driver-manager/main.go). mig-manager writes paused-for-mig-change.
	// Both set them back when they are done or have failed.
	deployLabels = "nvidia.com/gpu.deploy."
	pausedFor    = "paused-for-"

	// operatorFile has the label for which the node is drained. A node without it is drained by an administrator, or not at all.
	operatorFile = "operator"

	// operatorPause is the time between two tries to drain a node whose labels stay.
	operatorPause = 10 * time.Second
)

// Pause is the request of NVIDIA's GPU operator that clients of the driver leave a node.
type Pause struct {
	// Known is false until the node was read.
	Known bool
	// By is the label with the request, as KEY=VALUE; empty: there is none.
	By string
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
		n, is := obj.(*corev1.Node)
		if !is || n.Name != node {
			return
		}
		if now := PauseOf(n.Labels); now != pause.Now() {
			pause.Set(now)
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
	// followed is the last Pause that was obeyed whole.
	followed observed.Value[Pause]
}

// AllRoles returns an Operator of a role that has nothing to do itself: every role follows the phase.
func AllRoles(d Directory, pause *observed.Value[Pause]) *Operator {
	return &Operator{
		Directory: d, Pause: pause,
		Drain:   func(context.Context, string) error { return d.Set(Draining) },
		Undrain: func() error { return d.Set(None) },
	}
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
			klog.FromContext(ctx).Error(err, "NVIDIA's GPU operator is not obeyed yet", "label", pause.By)
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
	err := o.obey(ctx, pause.By)
	if ctx.Err() != nil {
		return nil // the labels have changed
	}
	return err
}

func (o *Operator) obey(ctx context.Context, by string) error {
	ours := o.By() != ""
	switch {
	case by == "" && !ours && !o.isActive():
		return nil
	case by == "":
		klog.FromContext(ctx).Info("NVIDIA's GPU operator lets clients of the driver come back")
		if err := o.Undrain(); err != nil {
			return err
		}
		return o.Disown()
	case !ours:
		if phase, err := o.Phase(); phase != None {
			klog.FromContext(ctx).Info("An administrator has drained the node before NVIDIA's GPU operator asked for it", "label", by)
			return err
		}
		if err := o.own(by); err != nil {
			return err
		}
	}
	o.mu.Lock()
	o.active = true
	o.mu.Unlock()
	klog.FromContext(ctx).Info("NVIDIA's GPU operator requests that clients of the driver leave the node", "label", by)
	return o.Drain(ctx, by)
}

func (o *Operator) isActive() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.active
}

// Disown makes the drain an administrator's, or records that there is none.
func (o *Operator) Disown() error {
	o.mu.Lock()
	o.active = false
	o.mu.Unlock()
	return o.Directory.Disown()
}

// Disown removes the record of the label for which the node is drained.
func (d Directory) Disown() error {
	if err := os.Remove(d.file(operatorFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget for which label the node's GPUs are drained: %w", err)
	}
	return nil
}

func (d Directory) own(by string) error {
	if err := d.make(); err != nil {
		return err
	}
	if err := (atomicfile.Writer{}).Write(d.file(operatorFile), []byte(by+"\n"), 0o644); err != nil {
		return fmt.Errorf("remember for which label the node's GPUs are drained: %w", err)
	}
	return nil
}

// By is the label of NVIDIA's GPU operator for which the node is drained; empty: none.
func (d Directory) By() string {
	text, err := os.ReadFile(d.file(operatorFile))
	if err != nil || d.Path == "" {
		return ""
	}
	return strings.TrimSpace(string(text[:min(len(text), 1000)]))
}

// Until is in words when the drain ends.
func (d Directory) Until() string {
	if by := d.By(); by != "" {
		return "until NVIDIA's GPU operator takes the node's label " + by + " back"
	}
	return "until gpufabric undrain"
}
