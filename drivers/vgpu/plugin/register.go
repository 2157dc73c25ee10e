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
	"gpufabric.io/drivers/vgpu/decks"
	"gpufabric.io/drivers/vgpu/injection"
)

// unitAnnotation tells people what one unit of memory is on the node.
const unitAnnotation = "vgpu.gpufabric.io/unit"

// registrar keeps the node's annotations as the scheduler wants them. It writes when something differs and at no other time.
type registrar struct {
	client    kubernetes.Interface
	node      string
	resource  string // of memory
	handshake bool
	// limits is what holds containers on the node to their shares.
	limits injection.Backend
	now    func() time.Time
	deck   func() *decks.Deck
	// slots are the MIG slots of a card, in MiB; nil where no card has any.
	slots func(decks.Card) ([][]int64, error)
	// changed holds a token when the deck may have changed.
	changed chan struct{}
	// after is time.After; tests put their own in its place.
	after func(time.Duration) <-chan time.Time
	// pause is the least time between two answers to a handshake.
	pause time.Duration
	// reported is when the handshake was last answered. Only run touches it.
	reported time.Time
}

// handshakePause is the least time between two answers to a handshake. Volcano up to 1.14.2, and 1.15.0, ask again at every event of a node
// (device_info.go of its scheduler), and an answer is one: plugin and scheduler that answer at once write the Node for ever. Volcano waits
// a minute for an answer.
const handshakePause = 30 * time.Second

// registerPatience is how long a registration that failed waits until it is tried again: from half a second to half a minute, which is also
// how often Volcano looks at nodes.
var registerPatience = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8, Cap: 30 * time.Second}

// wake has the deck looked at again.
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
	var again <-chan time.Time // nil where the last registration stands
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

// register patches what differs, and returns after which time there is something more to write; 0: when something changes.
func (r *registrar) register(ctx context.Context, node *corev1.Node) (time.Duration, error) {
	annotations, pause, err := r.wanted(node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Something of the node's registration is wrong")
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

// wanted are the annotations as they should be, and after which time there is one more: a handshake is answered where the scheduler spoke
// last, at most once in a pause. One that cannot be read is answered too: a report is always right.
func (r *registrar) wanted(node *corev1.Node) (map[string]string, time.Duration, error) {
	deck := r.deck()
	out := map[string]string{
		annotation.NodeRegister: annotation.FormatGPUs(deck.Registered()),
		unitAnnotation:          decks.DescribeFactor(r.resource, deck.Factor),
	}
	if r.limits != "" {
		out[annotation.Limits] = string(r.limits)
	}
	slots, refused := r.migSlots(deck)
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

// migSlots are the MIG slots of the cards that are cut, in the deck's units. A card whose slots cannot be told has none, with the reason.
func (r *registrar) migSlots(deck *decks.Deck) (string, error) {
	all := map[string][][]int64{}
	var refused error
	for _, card := range deck.Cards {
		if card.Mode != annotation.ModeMIG || r.slots == nil {
			continue
		}
		groups, err := r.slots(card)
		if err != nil {
			refused = errors.Join(refused, fmt.Errorf("no MIG slots of %s are told: %w", card.GPU.UUID, err))
			continue
		}
		for _, group := range groups {
			for i := range group {
				group[i] /= int64(deck.Factor) // rounded down, as a GPU's memory is
			}
		}
		all[card.GPU.UUID] = groups
	}
	return annotation.FormatSlots(all), refused
}
