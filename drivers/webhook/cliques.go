package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"gpufabric.io/drivers/api/resource/cliques"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/api/resource/validation"
)

const (
	// freshFor is how long one survey of the cluster is used, also a failed one: the API server gets at most six lists of nodes a minute,
	// however many domains are written.
	freshFor = 10 * time.Second
	// patience bounds the survey. The API server waits 3 s for a review, and a domain must not wait longer for a warning.
	patience = 2 * time.Second
	// pageSize bounds one answer: a Node is some 10 KB, most of it the names of its images.
	pageSize = 250
)

// Cliques is the present state of the nodes of NVLink cliques, read on demand.
type Cliques struct {
	client kubernetes.Interface
	now    func() time.Time

	turn  chan struct{} // holds one token while a reader is at work; it guards the fields below
	nodes []cliques.Node
	err   error
	at    time.Time
}

// NewCliques reads by a client that may list nodes and ResourceSlices.
func NewCliques(client kubernetes.Interface) *Cliques {
	return &Cliques{client: client, now: time.Now, turn: make(chan struct{}, 1)}
}

// Nodes returns the nodes of cliques as they were at most freshFor ago. It returns when ctx ends, at the latest.
func (c *Cliques) Nodes(ctx context.Context) ([]cliques.Node, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !c.at.IsZero() && c.now().Sub(c.at) < freshFor {
		return c.nodes, c.err
	}
	// The caller may go away; the answer also serves later callers.
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	c.nodes, c.err = look(looking, c.client)
	c.at = c.now()
	return c.nodes, c.err
}

// look lists the nodes with a clique, and the channels of compute domains.
func look(ctx context.Context, client kubernetes.Interface) ([]cliques.Node, error) {
	var survey cliques.Survey
	options := metav1.ListOptions{Limit: pageSize, LabelSelector: v1beta1.LabelClique}
	for more := true; more; more = options.Continue != "" {
		page, err := client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the nodes of NVLink cliques: %w", err)
		}
		for i := range page.Items {
			survey.AddNode(&page.Items[i])
		}
		options.Continue = page.Continue
	}
	options = metav1.ListOptions{Limit: pageSize,
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + validation.ComputeDomainDriver}
	newest := map[string][]*resourceapi.ResourceSlice{} // by pool
	for more := true; more; more = options.Continue != "" {
		page, err := client.ResourceV1().ResourceSlices().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the ResourceSlices of %s: %w", validation.ComputeDomainDriver, err)
		}
		for i := range page.Items {
			slice := &page.Items[i]
			name, generation := slice.Spec.Pool.Name, slice.Spec.Pool.Generation
			if known := newest[name]; len(known) > 0 && known[0].Spec.Pool.Generation != generation {
				if known[0].Spec.Pool.Generation > generation {
					continue
				}
				newest[name] = nil
			}
			newest[name] = append(newest[name], slice)
		}
		options.Continue = page.Continue
	}
	for _, pool := range newest {
		for _, slice := range pool {
			if slice.Spec.NodeName == nil {
				continue
			}
			for i := range slice.Spec.Devices {
				survey.AddDevice(*slice.Spec.NodeName, slice.Spec.Driver, &slice.Spec.Devices[i])
			}
		}
	}
	return survey.Nodes(), nil
}

// warnings are about a new ComputeDomain that fits no clique now. They do not refuse it, and unknown facts give no warning: nodes come
// back, and a domain may be meant for more than one clique.
func (r Reviewer) warnings(ctx context.Context, request *admission.Request) []string {
	if r.Cliques == nil || request.Operation != admissionv1.Create || request.Kind.Kind != "ComputeDomain" ||
		request.Kind.Group != v1beta1.GroupName {
		return nil
	}
	var domain v1beta1.ComputeDomain
	if err := json.Unmarshal(request.Object.Raw, &domain); err != nil || domain.Spec.NumNodes <= 0 {
		return nil // the schema refuses an invalid one
	}
	nodes, err := r.Cliques.Nodes(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Could not determine whether a ComputeDomain fits a clique", "namespace", request.Namespace,
			"name", request.Name, "reason", err.Error())
		return nil
	}
	short := cliques.Fit(nodes, domain.Spec.NumNodes)
	if short == nil {
		return nil
	}
	return short.Warnings()
}
