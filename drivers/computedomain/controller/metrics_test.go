package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

func TestMetricsHaveSizeStateAndAgeOfADomain(t *testing.T) {
	d := newDomain("d", 2)
	c := newCluster(t, d)
	figures := newCollector(c.Client, &c.reconciler.clocks, func() time.Time { return c.now }, namedDomains)
	c.settle(d.UID)
	began := c.now
	c.join(d, "a", "10.0.0.1", isReady)
	c.settle(d.UID)
	c.now = began.Add(30 * time.Second)
	c.join(d, "b", "10.0.0.2", isReady)
	_, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	became := c.now
	c.now = c.now.Add(100 * time.Second)
	progressing := c.reconciler.clocks.read(d.UID, c.now)[stateProgressing]
	if progressing < became.Sub(began) {
		t.Errorf("it was progressing for %s, and had been seen %s before it became Ready", progressing, became.Sub(began))
	}
	want := fmt.Sprintf(`
# HELP gpufabric_compute_domain_nodes Nodes that have joined, by state: starting, ready, or interrupted (it was ready, and is not).
# TYPE gpufabric_compute_domain_nodes gauge
gpufabric_compute_domain_nodes{domain="d",domain_namespace="user",state="interrupted"} 0
gpufabric_compute_domain_nodes{domain="d",domain_namespace="user",state="ready"} 2
gpufabric_compute_domain_nodes{domain="d",domain_namespace="user",state="starting"} 0
# HELP gpufabric_compute_domain_ready 1 while the compute domain is Ready.
# TYPE gpufabric_compute_domain_ready gauge
gpufabric_compute_domain_ready{domain="d",domain_namespace="user"} 1
# HELP gpufabric_compute_domain_size Nodes of the compute domain: those that it asks for, or those that it has, if more.
# TYPE gpufabric_compute_domain_size gauge
gpufabric_compute_domain_size{domain="d",domain_namespace="user"} 2
# HELP gpufabric_compute_domain_state 1 for the state that the compute domain is in: progressing, ready, degraded or deleting.
# TYPE gpufabric_compute_domain_state gauge
gpufabric_compute_domain_state{domain="d",domain_namespace="user",state="ready"} 1
# HELP gpufabric_compute_domain_state_seconds_total Seconds that the compute domain has been in each state since this controller took over.
# TYPE gpufabric_compute_domain_state_seconds_total counter
gpufabric_compute_domain_state_seconds_total{domain="d",domain_namespace="user",state="progressing"} %v
gpufabric_compute_domain_state_seconds_total{domain="d",domain_namespace="user",state="ready"} 100
# HELP gpufabric_compute_domains_unnamed Compute domains beyond those that have series of their own.
# TYPE gpufabric_compute_domains_unnamed gauge
gpufabric_compute_domains_unnamed 0
`, progressing.Seconds())
	if err := testutil.CollectAndCompare(figures, strings.NewReader(want), "gpufabric_compute_domain_nodes", "gpufabric_compute_domain_ready",
		"gpufabric_compute_domain_size", "gpufabric_compute_domain_state", "gpufabric_compute_domain_state_seconds_total",
		"gpufabric_compute_domains_unnamed"); err != nil {
		t.Error(err)
	}
	if count := testutil.CollectAndCount(figures, "gpufabric_compute_domain_last_transition_timestamp_seconds"); count != 1 {
		t.Errorf("%d series say when its conditions changed last", count)
	}
	c.reconciler.clocks.forget(d.UID)
	if left := c.reconciler.clocks.read(d.UID, c.now); left != nil {
		t.Errorf("of a domain that is gone %v is kept", left)
	}
}

func TestMetricsNameABoundedNumberOfDomains(t *testing.T) {
	var clocks clocks
	c := newCluster(t)
	for i := range 8 {
		domain := newDomain(fmt.Sprintf("d%d", i), 1)
		domain.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
		domain.UID += "x"
		c.must(c.Create(t.Context(), domain))
	}
	figures := newCollector(c.Client, &clocks, time.Now, 5)
	if named := testutil.CollectAndCount(figures, "gpufabric_compute_domain_size"); named != 5 {
		t.Errorf("%d domains are named", named)
	}
	want := `
# HELP gpufabric_compute_domains_unnamed Compute domains beyond those that have series of their own.
# TYPE gpufabric_compute_domains_unnamed gauge
gpufabric_compute_domains_unnamed 3
`
	if err := testutil.CollectAndCompare(figures, strings.NewReader(want), "gpufabric_compute_domains_unnamed"); err != nil {
		t.Error(err)
	}
}

func TestMetricsReportTheFirstStateThatApplies(t *testing.T) {
	now := metav1.Now()
	degraded := []metav1.Condition{{Type: v1beta1.ConditionDegraded, Status: metav1.ConditionTrue}}
	for want, domain := range map[string]v1beta1.ComputeDomain{
		stateDeleting: {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now},
			Status: v1beta1.ComputeDomainStatus{Conditions: degraded, Status: v1beta1.Ready}},
		stateDegraded:    {Status: v1beta1.ComputeDomainStatus{Conditions: degraded, Status: v1beta1.Ready}},
		stateReady:       {Status: v1beta1.ComputeDomainStatus{Status: v1beta1.Ready}},
		stateProgressing: {},
	} {
		if got := stateOfDomain(&domain); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
