package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/selection"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/store"
)

// FormsCondition is the condition of a Node that says in which forms its GPUs are offered, by whose word, and what keeps one from its form.
const FormsCondition corev1.NodeConditionType = "GPUForms"

const (
	// formsSettle is how long a node's labels must stand still before its GPUs change their forms: whoever sets several labels is not done
	// with the first.
	formsSettle = 2 * time.Second
	// formsUnrest is how long labels may change faster than that before the node's condition says so.
	formsUnrest = 10 * time.Second
)

// formsKind is how forms are kept: as earlier versions kept them, with a checksum added, which those pass over.
func formsKind() store.Kind[devices.Forms] {
	return store.Kind[devices.Forms]{Name: "gpufabric-gpu-forms", Version: 1, Form: store.Object,
		Check: func(_ string, f devices.Forms) error { return f.Validate() }}
}

// keptForms are the forms that were offered last, so that a restart offers them from its first moment. A nil file keeps nothing.
type keptForms struct{ file *store.File[devices.Forms] }

// openForms reads what an earlier run kept. The error names what cannot be read; the keptForms are good all the same.
func openForms(path string) (keptForms, error) {
	file, unreadable, err := store.OpenFile(path, formsKind(), 0, atomicfile.Writer{})
	for _, u := range unreadable {
		err = errors.Join(err, errors.New(u.String()))
	}
	if err != nil {
		err = fmt.Errorf("%w: which forms the GPUs were offered in is worked out again", err)
	}
	return keptForms{file}, err
}

// last are the forms that the role offered when it last ran; nil: they are not known.
func (k keptForms) last() *devices.Chosen {
	if k.file == nil {
		return nil
	}
	forms, kept := k.file.Get()
	if !kept {
		return nil
	}
	return &devices.Chosen{Forms: forms, Reason: "LastRun", By: "the role's last run"}
}

// ranBefore says whether an earlier run offered GPUs here.
func (k keptForms) ranBefore() bool { return k.last() != nil || k.file != nil && k.file.Aside() }

// keep writes the forms down for the next start.
func (k keptForms) keep(f devices.Forms) error {
	if k.file == nil {
		return nil // which openForms reported
	}
	return k.file.Put(f)
}

// wish is what is known of the forms that are wanted.
type wish struct {
	// known: it is known which forms to offer.
	known  bool
	answer devices.Chosen
	// trouble is why the last word of somebody is not followed; empty: it is.
	trouble string
}

// forms offers the node's GPUs in the forms that the node's labels and the chart ask for.
type forms struct {
	choice devices.Choice
	kind   *claims.Kind
	view   selection.Node
	events nodeEvents
	kept   keptForms
	// wish is set by the goroutine of Run alone.
	wish observed.Value[wish]
}

// newForms begins with the forms of the role's last run, where they are known.
func newForms(choice devices.Choice, kind *claims.Kind, view selection.Node, events nodeEvents, kept keptForms) *forms {
	f := &forms{choice: choice, kind: kind, view: view, events: events, kept: kept}
	if last := kept.last(); last != nil {
		f.wish.Set(wish{known: true, answer: *last})
	}
	return f
}

// refuse keeps the forms that there are.
func (f *forms) refuse(trouble string) {
	f.wish.Set(wish{known: true, answer: f.wish.Now().answer, trouble: trouble})
}

// Run follows the node's labels until ctx ends.
func (f *forms) Run(ctx context.Context) error {
	told := make(chan labels.Set)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	watching.Go(func() {
		ended <- selection.Labels(ctx, f.view, func(l labels.Set) {
			select {
			case told <- l:
			case <-ctx.Done():
			}
		})
	})
	var node labels.Set
	var settled <-chan time.Time
	var since time.Time
	known := false
	for {
		select {
		case now := <-told:
			if !known {
				known, node = true, now
				f.apply(ctx, node)
				continue
			}
			if settled == nil {
				since = time.Now()
			} else if time.Since(since) > formsUnrest {
				f.refuse(fmt.Sprintf("the node's labels change faster than once in %s; its GPUs keep their forms until the labels stand still",
					formsSettle))
			}
			node, settled = now, time.After(formsSettle)
		case <-settled:
			settled = nil
			f.apply(ctx, node)
		case err := <-ended:
			return err
		}
	}
}

// apply offers what a node with these labels is to offer. Where that cannot be known, the node keeps what it has.
func (f *forms) apply(ctx context.Context, node labels.Set) {
	answer, err := f.choice.Resolve(node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The node's GPUs keep their forms")
		f.events.Report("GPUFormsContradict", err.Error())
		f.refuse(err.Error())
		return
	}
	if before := f.kind.Hardware().Offer.Forms; !before.Equal(answer.Forms) {
		klog.FromContext(ctx).Info("The node's GPUs change their forms", "from", before.String(), "to", answer.String(), "by", answer.By)
		f.kind.SetForms(answer.Forms)
	}
	if err := f.kept.keep(answer.Forms); err != nil {
		klog.FromContext(ctx).Error(err, "The node's forms are not kept for the next start")
	}
	f.wish.Set(wish{known: true, answer: answer})
}

// condition is what the node says of its GPUs' forms.
func (w wish) condition(h *claims.Hardware) corev1.NodeCondition {
	counts := map[string]int{}
	for _, g := range h.Node.GPUs {
		forms := map[string]bool{}
		for _, d := range h.Pool.Devices() {
			if d.GPU == g {
				forms[d.Describe()] = true
			}
		}
		counts[strings.Join(slices.Sorted(maps.Keys(forms)), " and ")]++
	}
	var offered []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		words := name
		if words == "" {
			words = "nothing"
		}
		offered = append(offered, fmt.Sprintf("%d GPUs offer %s", counts[name], words))
	}
	message := fmt.Sprintf("%s; asked for: %s", strings.Join(offered, "; "), h.Offer.Forms)
	c := corev1.NodeCondition{Type: FormsCondition, Status: corev1.ConditionTrue, Reason: w.answer.Reason}
	if w.answer.By != "" {
		message += ", by " + w.answer.By
	}
	switch {
	case w.trouble != "":
		c.Status, c.Reason = corev1.ConditionFalse, "FormsContradict"
		message = w.trouble + "; until then " + message
	case len(h.Pool.Problems) > 0:
		c.Status, c.Reason = corev1.ConditionFalse, "FormNotOnGPU"
		message = errors.Join(h.Pool.Problems...).Error() + "; " + message
	case len(h.Pool.Settling) > 0:
		c.Status, c.Reason = corev1.ConditionFalse, "FormsHeld"
		message = fmt.Sprintf("%d GPUs keep their forms until the claims that hold them end (%s); ", len(h.Pool.Settling),
			strings.Join(slices.Sorted(maps.Keys(h.Pool.Settling)), ", ")) + message
	}
	c.Message = message
	return c
}
