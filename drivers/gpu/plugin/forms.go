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
	"gpufabric.io/drivers/node/capability"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/store"
)

// FormsCondition is the condition of a Node with the forms in which its GPUs are offered, their source, and the obstacle where one
// does not have its form.
const FormsCondition corev1.NodeConditionType = "GPUForms"

const (
	// formsSettle is how long a node's labels must stay unchanged before its GPUs change their forms: an administrator may set
	// several labels, one after another.
	formsSettle = 2 * time.Second
	// formsUnrest is how long labels may keep changing before the node's condition reports it.
	formsUnrest = 10 * time.Second
)

// formsFormat describes how forms are stored.
func formsFormat() store.Format[devices.Forms] {
	return store.Format[devices.Forms]{Name: "gpufabric-gpu-forms", Version: 1,
		Check: func(_ string, f devices.Forms) error { return f.Validate() }}
}

// keptForms are the forms that were offered last, so that a restart offers them from its first moment. A nil file stores nothing.
type keptForms struct{ file *store.File[devices.Forms] }

// openForms reads the file of an earlier run. The error names unreadable files; the keptForms can be used all the same.
func openForms(path string) (keptForms, error) {
	file, unreadable, err := store.OpenFile(path, formsFormat(), 0, atomicfile.Writer{})
	for _, u := range unreadable {
		err = errors.Join(err, errors.New(u.String()))
	}
	if err != nil {
		err = fmt.Errorf("%w: the forms of the GPUs are computed again", err)
	}
	return keptForms{file}, err
}

// last are the forms that the role offered when it last ran; nil: unknown.
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

// keep stores the forms for the next start.
func (k keptForms) keep(f devices.Forms) error {
	if k.file == nil {
		return nil // which openForms reported
	}
	return k.file.Put(f)
}

// wish has the sources of the wanted forms.
type wish struct {
	// known: the forms to offer are known.
	known  bool
	answer devices.Chosen
	// trouble is why the latest choice cannot be applied; empty: it can.
	trouble string
}

// forms offers the node's GPUs in the forms that the node's labels and the chart select.
type forms struct {
	choice devices.Choice
	kind   formed
	view   selection.Node
	events nodeEvents
	kept   keptForms
	settle time.Duration // how long labels must stay unchanged
	// Only the goroutine of Run sets wish.
	wish observed.Value[wish]
}

// formed offers GPUs in some forms.
type formed interface {
	Forms() devices.Forms
	SetForms(forms devices.Forms)
}

// newForms starts with the forms of the role's last run, where they are known.
func newForms(choice devices.Choice, kind formed, view selection.Node, events nodeEvents, kept keptForms) *forms {
	f := &forms{choice: choice, kind: kind, view: view, events: events, kept: kept}
	if last := kept.last(); last != nil {
		f.wish.Set(wish{known: true, answer: *last})
	}
	return f
}

// refuse keeps the present forms.
func (f *forms) refuse(trouble string) {
	f.wish.Set(wish{known: true, answer: f.wish.Now().answer, trouble: trouble})
}

// Run follows the node's labels until ctx ends.
func (f *forms) Run(ctx context.Context) error {
	updates := make(chan labels.Set)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	watching.Go(func() {
		ended <- selection.Labels(ctx, f.view, func(l labels.Set) {
			select {
			case updates <- l:
			case <-ctx.Done():
			}
		})
	})
	return steady(updates, ended, f.settle, func(node labels.Set) { f.apply(ctx, node) }, func() {
		f.refuse(fmt.Sprintf("the node's labels change faster than once in %s; its GPUs keep their forms until the labels stand still",
			f.settle))
	})
}

// steady calls apply with the first labels at once, and with later ones when they have not changed for settle. While they have changed for
// longer than formsUnrest without that, it calls restless at each change. It returns the result of ended.
func steady(updates <-chan labels.Set, ended <-chan error, settle time.Duration, apply func(labels.Set), restless func()) error {
	var node labels.Set
	var settled <-chan time.Time
	var since time.Time
	known := false
	for {
		select {
		case now := <-updates:
			if !known {
				known, node = true, now
				apply(node)
				continue
			}
			if settled == nil {
				since = time.Now()
			} else if time.Since(since) > formsUnrest {
				restless()
			}
			node, settled = now, time.After(settle)
		case <-settled:
			settled = nil
			apply(node)
		case err := <-ended:
			return err
		}
	}
}

// apply offers the forms for a node with these labels. Where they cannot be determined, the node keeps its forms.
func (f *forms) apply(ctx context.Context, node labels.Set) {
	answer, err := f.choice.Resolve(node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The node's GPUs keep their forms")
		f.events.Report("GPUFormsContradict", err.Error())
		f.refuse(err.Error())
		return
	}
	if before := f.kind.Forms(); !before.Equal(answer.Forms) {
		klog.FromContext(ctx).Info("The node's GPUs change their forms", "from", before.String(), "to", answer.String(), "by", answer.By)
		f.kind.SetForms(answer.Forms)
	}
	if err := f.kept.keep(answer.Forms); err != nil {
		klog.FromContext(ctx).Error(err, "Could not store the node's forms for the next start")
	}
	f.wish.Set(wish{known: true, answer: answer})
}

// condition is the node's condition about its GPUs' forms.
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
		problems := errors.Join(h.Pool.Problems...)
		if errors.As(problems, new(capability.Missing)) {
			c.Reason = "NeedsKubernetesFeature"
		}
		message = problems.Error() + "; " + message
	case len(h.Pool.Settling) > 0:
		c.Status, c.Reason = corev1.ConditionFalse, "FormsHeld"
		message = fmt.Sprintf("%d GPUs keep their forms until the claims that hold them end (%s); ", len(h.Pool.Settling),
			strings.Join(slices.Sorted(maps.Keys(h.Pool.Settling)), ", ")) + message
	}
	c.Message = message
	return c
}
