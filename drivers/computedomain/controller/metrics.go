package controller

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// namedDomains is the maximum number of domains that the metrics name: the oldest. Tenants may create any number of domains, and
// each has up to thirteen series.
const namedDomains = 1000

// The states of a domain in its metrics. A domain is in one at a time: the first that applies, in this order.
const (
	stateDeleting    = "deleting"
	stateDegraded    = "degraded"
	stateReady       = "ready"
	stateProgressing = "progressing"
)

// stateOfDomain is the state in a domain's status.
func stateOfDomain(domain *v1beta1.ComputeDomain) string {
	switch {
	case domain.DeletionTimestamp != nil:
		return stateDeleting
	case meta.IsStatusConditionTrue(domain.Status.Conditions, v1beta1.ConditionDegraded):
		return stateDegraded
	case domain.Status.Status == v1beta1.Ready:
		return stateReady
	default:
		return stateProgressing
	}
}

// clocks measure how long each domain has been in each state since this controller started.
type clocks struct {
	mu      sync.Mutex
	domains map[types.UID]*clock
}

type clock struct {
	state string
	since time.Time
	spent map[string]time.Duration
}

// observe records the present state of a domain.
func (c *clocks) observe(domain *v1beta1.ComputeDomain, now time.Time) {
	state := stateOfDomain(domain)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.domains == nil {
		c.domains = map[types.UID]*clock{}
	}
	known := c.domains[domain.UID]
	if known == nil {
		c.domains[domain.UID] = &clock{state: state, since: now, spent: map[string]time.Duration{}}
		return
	}
	if known.state != state {
		known.spent[known.state] += now.Sub(known.since)
		known.state, known.since = state, now
	}
}

// read returns how long a domain has been in each state that it has been in.
func (c *clocks) read(uid types.UID, now time.Time) map[string]time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.domains[uid]
	if known == nil {
		return nil
	}
	spent := maps.Clone(known.spent)
	spent[known.state] += now.Sub(known.since)
	return spent
}

// forget removes a deleted domain.
func (c *clocks) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.domains, uid)
}

// collector is the metrics of all domains, read from the controller's cache at each scrape. The labels are named after the domain,
// since Prometheus sets a label namespace of its own for the scraped target.
type collector struct {
	reader client.Reader
	clocks *clocks
	now    func() time.Time
	// named is the maximum number of domains that the metrics name.
	named int

	size, nodes, disconnected, ready, state, seconds, transition, unnamed *prometheus.Desc
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(reader client.Reader, clocks *clocks, now func() time.Time, named int) *collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"domain_namespace", "domain"}, labels...), nil)
	}
	return &collector{
		reader: reader, clocks: clocks, now: now, named: named,
		size: describe("gpufabric_compute_domain_size", "Nodes of the compute domain: those that it asks for, or those that it has, if more."),
		nodes: describe("gpufabric_compute_domain_nodes",
			"Nodes that have joined, by state: starting, ready, or interrupted (it was ready, and is not).", "state"),
		disconnected: describe("gpufabric_compute_domain_disconnected_nodes",
			"Nodes whose IMEX daemon is READY and not connected with that of another node which is."),
		ready: describe("gpufabric_compute_domain_ready", "1 while the compute domain is Ready."),
		state: describe("gpufabric_compute_domain_state",
			"1 for the state that the compute domain is in: progressing, ready, degraded or deleting.", "state"),
		seconds: describe("gpufabric_compute_domain_state_seconds_total",
			"Seconds that the compute domain has been in each state since this controller took over.", "state"),
		transition: describe("gpufabric_compute_domain_last_transition_timestamp_seconds",
			"When one of the conditions Ready, Progressing and Degraded changed last, in seconds since 1970."),
		unnamed: prometheus.NewDesc("gpufabric_compute_domains_unnamed", "Compute domains beyond those that have series of their own.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{c.size, c.nodes, c.disconnected, c.ready, c.state, c.seconds, c.transition, c.unnamed} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(collected chan<- prometheus.Metric) {
	var list v1beta1.ComputeDomainList
	// A cache that has stopped has no figures.
	if err := c.reader.List(context.Background(), &list); err != nil {
		collected <- prometheus.NewInvalidMetric(c.unnamed, err)
		return
	}
	slices.SortFunc(list.Items, func(a, b v1beta1.ComputeDomain) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	named := min(len(list.Items), c.named)
	for i := range list.Items[:named] {
		c.one(&list.Items[i], collected)
	}
	collected <- prometheus.MustNewConstMetric(c.unnamed, prometheus.GaugeValue, float64(len(list.Items)-named))
}

// one collects the figures of one domain.
func (c *collector) one(domain *v1beta1.ComputeDomain, collected chan<- prometheus.Metric) {
	gauge := func(description *prometheus.Desc, value float64, labels ...string) {
		collected <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value,
			append([]string{domain.Namespace, domain.Name}, labels...)...)
	}
	counts := countStates(domain.Status.Nodes)
	gauge(c.size, float64(max(domain.Spec.NumNodes, len(domain.Status.Nodes))))
	gauge(c.nodes, float64(counts.starting), "starting")
	gauge(c.nodes, float64(counts.ready), "ready")
	gauge(c.nodes, float64(counts.interrupted), "interrupted")
	apart := 0
	for i := range domain.Status.Nodes {
		if len(domain.Status.Nodes[i].Disconnected) > 0 {
			apart++
		}
	}
	gauge(c.disconnected, float64(apart))
	ready := 0.0
	if domain.Status.Status == v1beta1.Ready {
		ready = 1
	}
	gauge(c.ready, ready)
	gauge(c.state, 1, stateOfDomain(domain))
	for state, spent := range c.clocks.read(domain.UID, c.now()) {
		collected <- prometheus.MustNewConstMetric(c.seconds, prometheus.CounterValue, spent.Seconds(), domain.Namespace, domain.Name, state)
	}
	var last time.Time
	for _, condition := range domain.Status.Conditions {
		if condition.Type != v1beta1.ConditionDaemonsCurrent && condition.Type != v1beta1.ConditionCertificatesRenewable &&
			condition.LastTransitionTime.After(last) {
			last = condition.LastTransitionTime.Time
		}
	}
	if !last.IsZero() {
		gauge(c.transition, float64(last.Unix()))
	}
}

// serve serves the figures until ctx ends. The registry belongs to the whole process: if another controller in it, of a simulation,
// serves these figures already, this one does not.
func (c *collector) serve(ctx context.Context, registry prometheus.Registerer) error {
	err := registry.Register(c)
	if other := (prometheus.AlreadyRegisteredError{}); errors.As(err, &other) {
		klog.FromContext(ctx).V(2).Info("Another controller of this process exports the metrics of compute domains")
		return nil
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	registry.Unregister(c)
	return nil
}
