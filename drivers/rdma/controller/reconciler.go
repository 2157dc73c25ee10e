// Package controller keeps the status of RDMAPools. It computes conditions and counts from what each node reports, and removes the
// entries of nodes that are gone.
package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

const (
	// sweepInterval is how often to look for entries of nodes that are gone or no longer selected. Their removal is not urgent.
	sweepInterval = 10 * time.Minute
	// pageSize is how many nodes are listed at a time.
	pageSize = 500
	// crdPatience is how long the controller waits for its kind: for ever. The manager's other controllers do not need the kind and
	// would end with this one.
	crdPatience = 100 * 365 * 24 * time.Hour
	// fieldManager owns the fields of the status that are not nodes' entries.
	fieldManager = "gpufabric-controller"
	// nodeManager and a node's name form the owner of that node's entry; the rdma-plugin writes with it.
	nodeManager = "rdma-plugin/"
)

// Add adds the controller to a manager.
func Add(_ context.Context, m ctrl.Manager) error {
	if err := v1alpha1.AddToScheme(m.GetScheme()); err != nil {
		return err
	}
	r := &reconciler{client: m.GetClient(), reader: m.GetAPIReader(), now: time.Now, swept: make(map[string]time.Time)}
	// Several managers may run in one process, so controller names need not be unique.
	shared := true
	return ctrl.NewControllerManagedBy(m).For(&v1alpha1.RDMAPool{}).Named("rdmapool").WithOptions(controller.Options{
		SkipNameValidation: &shared, MaxConcurrentReconciles: 1, CacheSyncTimeout: crdPatience,
	}).Complete(r)
}

type reconciler struct {
	client client.Client
	reader client.Reader // not cached: the manager's cache holds some nodes only
	now    func() time.Time
	swept  map[string]time.Time // when each pool's entries were last compared with the nodes; one reconcile at a time uses it
}

// Reconcile updates the status of one pool from its nodes' entries.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var p v1alpha1.RDMAPool
	if err := r.client.Get(ctx, request.NamespacedName, &p); err != nil {
		delete(r.swept, request.Name)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if p.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	if err := r.sweep(ctx, &p); err != nil {
		return ctrl.Result{}, err
	}
	next := summarise(&p, r.now())
	now := p.Status.DeepCopy()
	now.Nodes = nil
	if equality.Semantic.DeepEqual(*now, next) {
		return ctrl.Result{RequeueAfter: sweepInterval}, nil
	}
	if err := r.apply(ctx, p.Name, fieldManager, &next); err != nil {
		return ctrl.Result{}, fmt.Errorf("write the status of RDMAPool %s: %w", p.Name, err)
	}
	return ctrl.Result{RequeueAfter: sweepInterval}, nil
}

// sweep removes the entries of nodes that are gone, and of nodes that the pool no longer selects and whose plugin was away then. It
// runs at intervals: listing the nodes for each report would be quadratic.
func (r *reconciler) sweep(ctx context.Context, p *v1alpha1.RDMAPool) error {
	if len(p.Status.Nodes) == 0 || r.now().Sub(r.swept[p.Name]) < sweepInterval {
		return nil
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	kept := p.Status.Nodes[:0]
	for _, entry := range p.Status.Nodes {
		if labels, found := nodes[entry.Name]; found && p.Spec.Selects(labels) {
			kept = append(kept, entry)
			continue
		}
		klog.FromContext(ctx).Info("Removing the report of a node that is gone or not selected", "pool", p.Name, "node", entry.Name)
		// Applying nothing as the entry's owner removes the entry.
		if err := r.apply(ctx, p.Name, nodeManager+entry.Name, nil); err != nil {
			return fmt.Errorf("remove node %s from the status of RDMAPool %s: %w", entry.Name, p.Name, err)
		}
	}
	p.Status.Nodes = kept
	r.swept[p.Name] = r.now()
	return nil
}

// nodes lists the labels of all nodes, by name.
func (r *reconciler) nodes(ctx context.Context) (map[string]map[string]string, error) {
	nodes := make(map[string]map[string]string)
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	for {
		if err := r.reader.List(ctx, page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return nil, err
		}
		for i := range page.Items {
			nodes[page.Items[i].Name] = page.Items[i].Labels
		}
		if page.Continue == "" {
			return nodes, nil
		}
	}
}

// apply writes the fields of the status that belong to owner.
func (r *reconciler) apply(ctx context.Context, name, owner string, status *v1alpha1.RDMAPoolStatus) error {
	var fields any // a nil pointer in an interface is not nil
	if status != nil {
		fields = status
	}
	object, err := v1alpha1.StatusOf("RDMAPool", name, fields)
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(r.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(owner),
		client.ForceOwnership))
}
