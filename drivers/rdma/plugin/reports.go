package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
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
	// maxReported bounds the conflicts in one report, and the values without a device.
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

	entries observed.Value[map[string]report] // the newest reports, by RDMAPool; nil: unknown yet
}

// report is the node's entry in the status of an RDMAPool. One that is made again under its name has no entry, nor has one whose entry
// was removed with the Node object.
type report struct {
	pool, node types.UID
	entry      v1alpha1.RDMAPoolNode
}

// Set computes the reports; Run writes those that changed.
func (r *reporter) Set(now picture) {
	if r.pools == nil || now.selection == nil {
		return
	}
	entries := make(map[string]report, len(now.objects))
	for _, o := range now.objects {
		entry := v1alpha1.RDMAPoolNode{Name: r.node, ObservedGeneration: o.Generation}
		if o.Mistake != nil {
			entry.Message = o.Mistake.Error()
		} else if reason := now.selection.Refused[o.Source()]; reason != "" {
			entry.Message = reason
			entry.Conflicts = []string{reason}
		}
		entries[o.Name] = report{o.UID, o.Node, entry}
	}
	for i := range now.selection.Pools {
		if selected := &now.selection.Pools[i]; selected.Object != "" {
			one := entries[selected.Object]
			one.entry = r.entry(now, selected)
			entries[selected.Object] = one
		}
	}
	r.entries.Set(entries)
}

func (r *reporter) entry(now picture, selected *pool.Pool) v1alpha1.RDMAPoolNode {
	entry := v1alpha1.RDMAPoolNode{Name: r.node, ObservedGeneration: selected.Generation, Devices: int32(len(selected.Members))}
	entry.Conflicts = append(entry.Conflicts, selected.Conflicts[:min(len(selected.Conflicts), maxReported)]...)
	for _, v := range selected.Unmatched[:min(len(selected.Unmatched), maxReported)] {
		entry.Unmatched = append(entry.Unmatched, v.Path)
	}
	var troubles []string
	for _, m := range selected.Members {
		if reason := m.Trouble(r.ports.State); reason != "" {
			troubles = append(troubles, m.HCA.Name+": "+reason)
		} else {
			entry.HealthyDevices++
		}
	}
	entry.Units = claimable(selected, r.ports.State)
	if now.devicePlugin {
		entry.Units = r.offers.Healthy(selected.Resource(), r.ports.State)
	}
	if entry.Units == 0 && entry.HealthyDevices > 0 {
		troubles = append(troubles, noUnits(selected))
	}
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

// noUnits returns the reason why a pool with healthy devices has no unit to allocate.
func noUnits(p *pool.Pool) string {
	if reason := p.Empty(); reason != "" {
		return reason
	}
	return fmt.Sprintf("none of the pool's %d units is on a device that can be used: raise rdmaHcaMax to at least its %d devices",
		p.RDMAHCAMax, len(p.Members))
}

// claimable counts the shares, or whole devices, that claims can have of a pool's healthy devices. A share does not need a unit: a device
// of the pool has at least one slot.
func claimable(p *pool.Pool, state func(health.Key) health.State) int32 {
	healthy := make(map[string]bool)
	var keys []string
	for _, m := range p.Members {
		keys = append(keys, m.HCA.Key())
		if m.Trouble(state) == "" {
			healthy[m.HCA.Key()] = true
		}
	}
	shares := int32(0)
	for _, key := range (pool.Layout{}).Divide(int(p.RDMAHCAMax), keys) {
		if healthy[key] {
			shares++
		}
	}
	return max(shares, int32(len(healthy)))
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

// refusals are the reasons why a pool has no device.
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
	written := make(map[string]report)
	var retry <-chan time.Time
	for {
		entries, changed := r.entries.Get()
		retry = nil
		write := func(name string, now *report) {
			var entry *v1alpha1.RDMAPoolNode
			if now != nil {
				entry = &now.entry
			}
			ctx, cancel := context.WithTimeout(ctx, reportTimeout)
			defer cancel()
			if err := r.pools.Report(ctx, name, entry); err != nil {
				log.Error(err, "Reporting on a pool failed; trying again", "after", reportRetry)
				retry = time.After(reportRetry)
				return
			}
			if now == nil {
				delete(written, name)
			} else {
				written[name] = *now
			}
		}
		for name, now := range entries {
			old, found := written[name]
			if !found || old.pool != now.pool || old.node != now.node || !equality.Semantic.DeepEqual(old.entry, now.entry) {
				write(name, &now)
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
