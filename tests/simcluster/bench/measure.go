package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/simcluster/audit"
	"gpufabric.io/tests/simcluster/chart"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/leftover"
	"gpufabric.io/tests/simcluster/manifests"
)

const (
	system    = "gpufabric-system"
	namespace = "bench"
	// idleTime is long enough for several of a lease's renewals and of the drivers' own periodic work.
	idleTime = 30 * time.Second
	// auditDelay is how long the API server may delay audit events. It is configured with one second.
	auditDelay = 3 * time.Second
	// stepTime bounds each step at the largest size.
	stepTime = 8 * time.Minute
)

// measurement is one size's run.
type measurement struct {
	options Options
	result  Result

	config    *rest.Config
	client    kubernetes.Interface
	manifests *manifests.Client
	domains   map[string]*observedDomain // by name
	cameUp    bool                       // there is a cluster to end
}

func (m *measurement) up(ctx context.Context) error {
	begin := time.Now()
	if err := m.options.Up(ctx, m.result.Nodes); err != nil {
		return err
	}
	m.cameUp = true
	m.result.Up = time.Since(begin).Seconds()
	var err error
	if m.config, err = controlplane.LoadConfig(filepath.Join(m.options.Dir, "kubeconfig")); err != nil {
		return err
	}
	if m.client, err = kubernetes.NewForConfig(m.config); err != nil {
		return fmt.Errorf("make the administrator's client: %w", err)
	}
	m.manifests, err = manifests.NewClient(m.config)
	return err
}

// install installs the chart and waits until every node has published what it has.
func (m *measurement) install(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, errors.New("not every node published its devices in time"))
	defer cancel()
	root, err := repository.Root()
	if err != nil {
		return err
	}
	values := fabric.Values()
	if m.options.Cliques {
		values["computeDomains"] = map[string]any{"imex": "clique"}
	}
	begin := time.Now()
	if err := chart.Install(ctx, m.config, chart.Options{
		Chart: filepath.Join(root, "charts/gpufabric"), Name: "gpufabric", Namespace: system, Values: values,
	}); err != nil {
		return err
	}
	if err := cluster.AwaitSlices(ctx, m.client, "compute-domain.nvidia.com", m.result.Nodes); err != nil {
		return err
	}
	m.result.Published = time.Since(begin).Seconds()
	if !m.options.Cliques {
		return nil
	}
	if err := m.awaitCliques(ctx); err != nil {
		return err
	}
	m.result.Cliques = time.Since(begin).Seconds()
	return nil
}

// awaitCliques waits until each rack's ComputeDomain has all its nodes Ready.
func (m *measurement) awaitCliques(ctx context.Context) error {
	whole := map[string]bool{}
	_, err := watchtools.UntilWithSync(ctx, domain.In(m.manifests.Objects(), system), &unstructured.Unstructured{}, nil,
		func(event watch.Event) (bool, error) {
			if object, ok := event.Object.(*unstructured.Unstructured); ok {
				d := domain.Read(object)
				whole[d.Name] = d.Status == domain.Ready && d.Ready == RackSize
			}
			count := 0
			for _, is := range whole {
				if is {
					count++
				}
			}
			return count == m.result.Nodes/RackSize, nil
		})
	if err != nil {
		return fmt.Errorf("wait for the IMEX daemons of %d cliques, of which are whole %v: %w", m.result.Nodes/RackSize, whole,
			context.Cause(ctx))
	}
	return nil
}

// idle counts the requests of our service accounts when there is nothing to do.
func (m *measurement) idle(ctx context.Context) error {
	settle, quiet := 10*time.Second, idleTime // rollouts are still being reported
	if m.options.Brief {
		settle, quiet = 2*time.Second, 5*time.Second
	}
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	before, err := m.used()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := sleep(ctx, quiet); err != nil {
		return err
	}
	end := time.Now()
	after, err := m.used()
	if err != nil {
		return err
	}
	if err := sleep(ctx, auditDelay); err != nil {
		return err
	}
	m.result.IdleMemory, m.result.IdleProcessor = after.memory, map[string]float64{}
	for role, seconds := range difference(after.processor, before.processor) {
		m.result.IdleProcessor[role] = seconds / end.Sub(begin).Hours()
	}
	m.result.Idle, m.result.IdleKept, m.result.IdleTime = map[string]int{}, map[string]int{}, end.Sub(begin).Seconds()
	return audit.Requests(controlplane.AuditLog(m.options.Dir), func(r audit.Request) {
		counts := m.result.Idle
		switch {
		case r.Received.Before(begin) || r.Received.After(end):
			return
		case r.Verb == "watch" || r.Object.Resource == "leases":
			counts = m.result.IdleKept
		}
		counts[strings.TrimPrefix(r.User.Username, "system:serviceaccount:"+system+":")+": "+kind(r)]++
	})
}

// count reads what was asked of the API server between two times.
func (m *measurement) count(ctx context.Context, begin, end time.Time) error {
	if err := sleep(ctx, auditDelay); err != nil {
		return err
	}
	return audit.Requests(controlplane.AuditLog(m.options.Dir), func(r audit.Request) {
		switch {
		case r.Received.Before(begin) || r.Received.After(end) || !r.Writes():
		case r.Object.Resource == "events":
			m.result.Events++
		case r.Object.Resource == "leases": // the controller's own requests, which depend on time and not on domains
		default:
			m.result.Writes[kind(r)]++
			if r.Response.Code == 409 {
				m.result.Conflicts++
			}
		}
	})
}

func kind(r audit.Request) string {
	name := r.Object.Resource
	if name == "" { // no object's, such as discovery
		name, _, _ = strings.Cut(r.URI, "?")
	}
	if r.Object.Subresource != "" {
		name += "/" + r.Object.Subresource
	}
	return r.Verb + " " + name
}

// remove deletes pods and domains, waits until they are gone, and looks for what is left.
func (m *measurement) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, errors.New("the domains did not go in time"))
	defer cancel()
	begin := time.Now()
	if err := deletePods(ctx, m.client); err != nil {
		return err
	}
	if err := deleteDomains(ctx, m.manifests.Objects()); err != nil {
		return err
	}
	if err := awaitEmpty(ctx, m.client, m.manifests.Objects()); err != nil {
		return err
	}
	m.result.Deleted = append(m.result.Deleted, time.Since(begin).Seconds())
	var uids []string
	for _, d := range m.domains {
		uids = append(uids, d.uid)
	}
	// Daemon pods and files are removed after the domain, with their own grace period.
	const grace = 10 * time.Second
	deadline := time.Now().Add(grace)
	for {
		left, err := leftover.Find(ctx, m.options.Dir, m.client, uids...)
		if err != nil {
			return err
		}
		if len(left) == 0 || time.Now().After(deadline) {
			m.result.Left = append(m.result.Left, left...)
			return nil
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
