package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

// Pools is where RDMAPools are read and reported on. pool.Client is one.
type Pools interface {
	Watch(ctx context.Context, changed func([]pool.Object)) error
	Report(ctx context.Context, pool string, entry *v1alpha1.RDMAPoolNode) error
}

const (
	// reportRetry is how long to wait after a failed report.
	reportRetry = 10 * time.Second
	// reportTimeout bounds one report.
	reportTimeout = 10 * time.Second
	// maxReported bounds the conflicts in one report.
	maxReported = 16
	// maxMessage bounds a report's message, in bytes. An RDMAPool holds the reports of all nodes, and the API server accepts 1.5 MiB.
	// With a thousand nodes each has 1.5 KiB, of which a third is the API server's record of the writer.
	maxMessage = 640
)

// reporter writes the node's reports on the RDMAPools that select it. Only the loop's goroutine calls Set.
type reporter struct {
	pools      Pools // nil: no reports
	node       string
	ports      *health.Watcher
	offers     *offer.Offers
	interfaces *exclusive.Setter

	entries observed.Value[map[string]v1alpha1.RDMAPoolNode] // the newest reports, by RDMAPool; nil: unknown yet
}

// Set computes the reports; Run writes those that changed.
func (r *reporter) Set(now picture) {
	if r.pools == nil || now.selection == nil {
		return
	}
	entries := make(map[string]v1alpha1.RDMAPoolNode, len(now.objects))
	for _, o := range now.objects {
		entry := v1alpha1.RDMAPoolNode{Name: r.node, ObservedGeneration: o.Generation}
		if o.Mistake != nil {
			entry.Message = o.Mistake.Error()
		} else if reason := now.selection.Refused[o.Source()]; reason != "" {
			entry.Message = reason
			entry.Conflicts = []string{reason}
		}
		entries[o.Name] = entry
	}
	for i := range now.selection.Pools {
		if selected := &now.selection.Pools[i]; selected.Object != "" {
			entries[selected.Object] = r.entry(now, selected)
		}
	}
	r.entries.Set(entries)
}

func (r *reporter) entry(now picture, selected *pool.Pool) v1alpha1.RDMAPoolNode {
	entry := v1alpha1.RDMAPoolNode{Name: r.node, ObservedGeneration: selected.Generation, Devices: int32(len(selected.Members))}
	entry.Conflicts = append(entry.Conflicts, selected.Conflicts[:min(len(selected.Conflicts), maxReported)]...)
	var troubles []string
	for _, m := range selected.Members {
		if reason := m.Trouble(r.ports.State); reason != "" {
			troubles = append(troubles, m.HCA.Name+": "+reason)
		} else {
			entry.HealthyDevices++
		}
	}
	entry.Units = r.offers.Healthy(selected.Resource(), r.ports.State)
	for _, m := range selected.Members {
		for _, net := range m.HCA.Nets() {
			if failure := r.interfaces.Failure(net); failure != "" {
				troubles = append(troubles, m.HCA.Name+": "+failure)
			}
		}
	}
	if len(selected.Members) == 0 {
		troubles = refusals(now.selection, selected.Resource())
	}
	if now.closed(selected) {
		entry.Closed = !selected.Exclusive()
		troubles = slices.Insert(troubles, 0, exclusive.NotOpened)
	}
	entry.Message = joined(troubles)
	return entry
}

// joined returns as many of the texts as a message can hold, at least one, and the number of the others.
func joined(texts []string) string {
	var message strings.Builder
	for i, text := range texts {
		if i > 0 && message.Len()+len(text) > maxMessage {
			fmt.Fprintf(&message, "; and %d more", len(texts)-i)
			break
		}
		if i > 0 {
			message.WriteString("; ")
		}
		message.WriteString(text)
	}
	return message.String()
}

// refusals say why a pool has no device.
func refusals(selection *pool.Selection, resource string) []string {
	var reasons []string
	for _, v := range selection.Verdicts {
		if reason := v.Refusals[resource]; reason != "" {
			reasons = append(reasons, v.Device+": "+reason)
		}
	}
	if len(reasons) == 0 {
		return []string{"the node has no RDMA device"}
	}
	return reasons
}

// Run writes reports until ctx ends. It has a goroutine of its own, since the API server may be slow or away.
func (r *reporter) Run(ctx context.Context) {
	log := klog.FromContext(ctx)
	written := make(map[string]v1alpha1.RDMAPoolNode)
	var retry <-chan time.Time
	for {
		entries, changed := r.entries.Get()
		retry = nil
		write := func(name string, entry *v1alpha1.RDMAPoolNode) {
			ctx, cancel := context.WithTimeout(ctx, reportTimeout)
			defer cancel()
			if err := r.pools.Report(ctx, name, entry); err != nil {
				log.Error(err, "Reporting on a pool failed; trying again", "after", reportRetry)
				retry = time.After(reportRetry)
				return
			}
			if entry == nil {
				delete(written, name)
			} else {
				written[name] = *entry
			}
		}
		for name, entry := range entries {
			if old, found := written[name]; !found || !equality.Semantic.DeepEqual(old, entry) {
				write(name, &entry)
			}
		}
		for name := range written {
			if _, found := entries[name]; !found {
				write(name, nil)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry:
		}
	}
}
