package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// unitAnnotation has the size of one unit of memory on the node, for people.
const unitAnnotation = "vgpu.gpufabric.io/unit"

// registrar keeps the node's annotations as the scheduler wants them. It writes only when something differs.
type registrar struct {
	client    kubernetes.Interface
	node      string
	resource  string // of memory
	handshake bool
	// limits is the backend that limits containers on the node to their shares.
	limits     injection.Backend
	now        func() time.Time
	sharedGPUs func() *sharedgpus.Set
	// slots returns the MIG slots of a card, in MiB; it is nil where no card has any.
	slots func(sharedgpus.Card) ([][]int64, error)
	// changed holds a token when the set of shared GPUs may have changed.
	changed chan struct{}
	// after is time.After; tests replace it.
	after func(time.Duration) <-chan time.Time
	// pause is the minimum time between two answers to a handshake.
	pause time.Duration
	// reported is when the handshake was last answered. Only run uses it.
	reported time.Time
}

// handshakePause is the minimum time between two answers to a handshake. Volcano up to 1.14.2, and 1.15.0, request a report at every event
// of a node (device_info.go of its scheduler), and an answer is such an event: if plugin and scheduler both answer at once they
// write the Node for ever. Volcano waits a minute for an answer.
const handshakePause = 30 * time.Second

// registerPatience is how long to wait after a failed registration: from half a second to half a minute, which is also how often
// Volcano reads nodes.
var registerPatience = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8, Cap: 30 * time.Second}

// wake makes run check the set of shared GPUs again.
func (r *registrar) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// run watches the node and answers, until ctx ends.
func (r *registrar) run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", r.node).String()
	}))
	informer := factory.Core().V1().Nodes().Informer()
	nodes := make(chan *corev1.Node, 1)
	latest := func(object any) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return
		}
		select { // Only the newest matters.
		case <-nodes:
		default:
		}
		nodes <- node
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: latest,
		UpdateFunc: func(_, object any) { latest(object) }}); err != nil {
		return fmt.Errorf("watch node %s: %w", r.node, err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	var node *corev1.Node
	var again <-chan time.Time // nil where the last registration is valid
	retry := registerPatience
	for {
		select {
		case <-ctx.Done():
			return nil
		case node = <-nodes:
		case <-r.changed:
		case <-again:
		}
		if node == nil {
			continue
		}
		again = nil
		if pause, err := r.register(ctx, node); err == nil {
			retry = registerPatience
			if pause > 0 {
				again = r.after(pause)
			}
		} else if ctx.Err() == nil {
			pause := retry.Step()
			klog.FromContext(ctx).Error(err, "The node's GPUs are not registered with the scheduler; trying again", "in",
				pause.Round(time.Millisecond).String())
			again = r.after(pause)
		}
	}
}

// register patches the annotations that differ, and returns the time until the next write; 0: after the next change.
func (r *registrar) register(ctx context.Context, node *corev1.Node) (time.Duration, error) {
	annotations, pause, err := r.wanted(node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A part of the node's registration is wrong")
	}
	for key, value := range annotations {
		if node.Annotations[key] == value {
			delete(annotations, key)
		}
	}
	if len(annotations) == 0 {
		return pause, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return 0, err
	}
	if _, err := r.client.CoreV1().Nodes().Patch(ctx, r.node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return 0, fmt.Errorf("annotate node %s: %w", r.node, err)
	}
	if annotations[annotation.NodeHandshake] != "" {
		r.reported = r.now()
	}
	return pause, nil
}

// wanted returns the annotations as they should be, and after which time there is one more. A handshake is answered where the
// scheduler wrote last, at most once in a pause. An unreadable one is answered too, since a report is always valid.
func (r *registrar) wanted(node *corev1.Node) (map[string]string, time.Duration, error) {
	gpus := r.sharedGPUs()
	out := map[string]string{
		annotation.NodeRegister: annotation.FormatGPUs(gpus.Registered()),
		unitAnnotation:          sharedgpus.DescribeFactor(r.resource, gpus.Factor),
	}
	if r.limits != "" {
		out[annotation.Limits] = string(r.limits)
	}
	slots, refused := r.migSlots(gpus)
	if node.Annotations[annotation.NodeMIGSlots] != slots {
		out[annotation.NodeMIGSlots] = slots
	}
	if !r.handshake {
		return out, 0, refused
	}
	state, err := annotation.ParseHandshake(node.Annotations[annotation.NodeHandshake])
	if err == nil && state == annotation.HandshakeReported {
		return out, 0, refused
	}
	if early := r.pause - r.now().Sub(r.reported); !r.reported.IsZero() && early > 0 {
		return out, early, refused
	}
	if err != nil {
		err = fmt.Errorf("the scheduler's handshake is malformed; answering it: %w", err)
	}
	out[annotation.NodeHandshake] = annotation.FormatReport(r.now())
	return out, 0, errors.Join(refused, err)
}

// migSlots are the MIG slots of the divided cards, in the set's units. A card whose slots are unknown has none, with the reason.
func (r *registrar) migSlots(gpus *sharedgpus.Set) (string, error) {
	all := map[string][][]int64{}
	var refused error
	for _, card := range gpus.Cards {
		if card.Mode != annotation.ModeMIG || r.slots == nil {
			continue
		}
		groups, err := r.slots(card)
		if err != nil {
			refused = errors.Join(refused, fmt.Errorf("MIG slots of %s are not published: %w", card.GPU.UUID, err))
			continue
		}
		for _, group := range groups {
			for i := range group {
				group[i] /= int64(gpus.Factor) // rounded down, as a GPU's memory is
			}
		}
		all[card.GPU.UUID] = groups
	}
	return annotation.FormatSlots(all), refused
}
