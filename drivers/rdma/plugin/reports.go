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
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/pool"
)

// Pools is where RDMAPools are read and reported on. pool.Client is one.
type Pools interface {
	Watch(ctx context.Context, changed func([]pool.Object)) error
	Report(ctx context.Context, pool string, entry *v1alpha1.RDMAPoolNode) error
}

const (
	// reportRetry is how long a failed report waits for the next try.
	reportRetry = 10 * time.Second
	// reportTimeout bounds one report.
	reportTimeout = 10 * time.Second
	// maxReported bounds the conflicts in one report.
	maxReported = 16
	// maxMessage bounds a report's message, in bytes. An RDMAPool holds the reports of all nodes, and the API server takes 1.5 MiB: of a
	// thousand nodes each has 1.5 KiB, of which a third is what the API server notes of who wrote it.
	maxMessage = 640
)

// entries are the node's reports on the RDMAPools that select it.
func (p *plugin) entries() map[string]v1alpha1.RDMAPoolNode {
	entries := make(map[string]v1alpha1.RDMAPoolNode, len(p.objects))
	for _, o := range p.objects {
		entry := v1alpha1.RDMAPoolNode{Name: p.NodeName, ObservedGeneration: o.Generation}
		if o.Mistake != nil {
			entry.Message = o.Mistake.Error()
		} else if reason := p.selection.Refused[o.Source()]; reason != "" {
			entry.Message = reason
			entry.Conflicts = []string{reason}
		}
		entries[o.Name] = entry
	}
	for i := range p.selection.Pools {
		if selected := &p.selection.Pools[i]; selected.Object != "" {
			entries[selected.Object] = p.entry(selected)
		}
	}
	return entries
}

func (p *plugin) entry(selected *pool.Pool) v1alpha1.RDMAPoolNode {
	entry := v1alpha1.RDMAPoolNode{Name: p.NodeName, ObservedGeneration: selected.Generation, Devices: int32(len(selected.Members))}
	entry.Conflicts = append(entry.Conflicts, selected.Conflicts[:min(len(selected.Conflicts), maxReported)]...)
	var troubles []string
	for _, m := range selected.Members {
		if reason := m.Trouble(p.ports.State); reason != "" {
			troubles = append(troubles, m.HCA.Name+": "+reason)
		} else {
			entry.HealthyDevices++
		}
	}
	entry.Units = p.offers.Healthy(selected.Resource(), p.ports.State)
	for _, m := range selected.Members {
		for _, net := range m.HCA.Nets() {
			if failure := p.interfaces.Failure(net); failure != "" {
				troubles = append(troubles, m.HCA.Name+": "+failure)
			}
		}
	}
	if len(selected.Members) == 0 {
		troubles = p.refusals(selected.Resource())
	}
	if p.exclusive && selected.Closed(p.DevicePlugin) {
		entry.Closed = !selected.Exclusive()
		troubles = slices.Insert(troubles, 0, exclusive.NotOpened)
	}
	entry.Message = joined(troubles)
	return entry
}

// joined is as many of the texts as a message holds, one at least, and the number of the others.
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
func (p *plugin) refusals(resource string) []string {
	var reasons []string
	for _, v := range p.selection.Verdicts {
		if reason := v.Refusals[resource]; reason != "" {
			reasons = append(reasons, v.Device+": "+reason)
		}
	}
	if len(reasons) == 0 {
		return []string{"the node has no RDMA device"}
	}
	return reasons
}

// report hands the reports to the reporter, which writes what changed.
func (p *plugin) report() {
	if p.Pools == nil || p.selection == nil {
		return
	}
	entries := p.entries()
	select {
	case <-p.reports: // The reporter did not come to the last ones; these stand for them too.
	default:
	}
	p.reports <- entries
}

// reporter writes reports until ctx ends. It is a goroutine of its own, since the API server may be slow or away.
func (p *plugin) reporter(ctx context.Context) {
	log := klog.FromContext(ctx)
	written := make(map[string]v1alpha1.RDMAPoolNode)
	var entries map[string]v1alpha1.RDMAPoolNode
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case entries = <-p.reports:
		case <-retry:
		}
		retry = nil
		write := func(name string, entry *v1alpha1.RDMAPoolNode) {
			ctx, cancel := context.WithTimeout(ctx, reportTimeout)
			defer cancel()
			if err := p.Pools.Report(ctx, name, entry); err != nil {
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
	}
}
