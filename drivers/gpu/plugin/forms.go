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

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/selection"
	"gpufabric.io/drivers/node/atomicfile"
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

// formsFile holds the forms that were offered last, so that a restart offers them from its first moment.
const formsFile = "forms.json"

// wish is what is known of the forms that are wanted, for the node's condition.
type wish struct {
	mu     sync.Mutex
	answer devices.Chosen
	// trouble is why the last word of somebody is not followed; empty: it is.
	trouble string
	// known is closed once it is known which forms to offer.
	known chan struct{}
	once  sync.Once
}

func (w *wish) set(answer devices.Chosen) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer, w.trouble = answer, ""
	w.once.Do(func() { close(w.known) })
}

// refuse keeps the forms that there are.
func (w *wish) refuse(trouble string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble = trouble
	w.once.Do(func() { close(w.known) })
}

func (w *wish) now() (devices.Chosen, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answer, w.trouble
}

// formsKind is how forms are kept: as earlier versions kept them, with a checksum added, which those pass over.
func formsKind() store.Kind[devices.Forms] {
	return store.Kind[devices.Forms]{Name: "gpufabric-gpu-forms", Version: 1, Form: store.Object,
		Check: func(_ string, f devices.Forms) error { return f.Validate() }}
}

// lastForms are the forms that the role offered when it last ran.
func (p *plugin) lastForms() (f devices.Forms, ok bool) {
	file, unreadable, err := store.OpenFile(p.stateFile(formsFile), formsKind(), 0, atomicfile.Writer{})
	for _, u := range unreadable {
		err = errors.Join(err, errors.New(u.String()))
	}
	if err != nil {
		p.report("GPUFormsUnreadable", fmt.Sprintf("%v: which forms the GPUs were offered in is worked out again", err))
	}
	if p.forms = file; file == nil {
		return devices.Forms{}, false
	}
	p.metrics.Registry.MustRegister(file)
	return file.Get()
}

// ranBefore says whether an earlier run offered GPUs here.
func (p *plugin) ranBefore() bool {
	if p.forms == nil {
		return false
	}
	_, kept := p.forms.Get()
	return kept || p.forms.Aside()
}

// keepForms writes the forms down for the next start.
func (p *plugin) keepForms(f devices.Forms) error {
	if p.forms == nil {
		return nil // which lastForms reported
	}
	return p.forms.Put(f)
}

// followForms offers the GPUs in the forms that the node's labels and the chart ask for, until ctx ends.
func (p *plugin) followForms(ctx context.Context) error {
	told := make(chan labels.Set)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	watching.Go(func() {
		ended <- selection.Labels(ctx, p.view(), func(l labels.Set) {
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
				p.applyForms(ctx, node)
				continue
			}
			if settled == nil {
				since = time.Now()
			} else if time.Since(since) > formsUnrest {
				p.wish.refuse(fmt.Sprintf("the node's labels change faster than once in %s; its GPUs keep their forms until the labels stand still",
					formsSettle))
				p.changed()
			}
			node, settled = now, time.After(formsSettle)
		case <-settled:
			settled = nil
			p.applyForms(ctx, node)
		case err := <-ended:
			return err
		}
	}
}

// applyForms offers what a node with these labels is to offer. Where that cannot be known, the node keeps what it has.
func (p *plugin) applyForms(ctx context.Context, node labels.Set) {
	answer, err := p.options.formsConfig.Resolve(node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The node's GPUs keep their forms")
		p.report("GPUFormsContradict", err.Error())
		p.wish.refuse(err.Error())
		p.changed()
		return
	}
	if before := p.kind.Hardware().Offer.Forms; !before.Equal(answer.Forms) {
		klog.FromContext(ctx).Info("The node's GPUs change their forms", "from", before.String(), "to", answer.String(), "by", answer.By)
		p.kind.SetForms(answer.Forms)
	}
	if err := p.keepForms(answer.Forms); err != nil {
		klog.FromContext(ctx).Error(err, "The node's forms are not kept for the next start")
	}
	p.wish.set(answer)
	p.changed()
}

// condition is what the node says of its GPUs' forms.
func (p *plugin) condition() corev1.NodeCondition {
	answer, trouble := p.wish.now()
	h := p.kind.Hardware()
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
	c := corev1.NodeCondition{Type: FormsCondition, Status: corev1.ConditionTrue, Reason: answer.Reason}
	if answer.By != "" {
		message += ", by " + answer.By
	}
	switch {
	case trouble != "":
		c.Status, c.Reason = corev1.ConditionFalse, "FormsContradict"
		message = trouble + "; until then " + message
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
