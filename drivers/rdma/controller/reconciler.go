// Package controller keeps the status of RDMAPools. It computes conditions and counts from the reports of nodes, and removes the
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
	// relook is how often to look for nodes of a pool that selects none. One node is listed for it at most.
	relook = 10 * time.Second
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
	r.networks = networks{reader: r.reader, now: r.now}
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
	// networks are the secondary networks of pools.
	networks networks
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
	none, err := r.selectsNone(ctx, &p)
	if err != nil {
		return ctrl.Result{}, err
	}
	next := summarise(&p, none, r.now())
	full, networks, unknown := r.networks.of(ctx, p.Spec.Resource())
	if unknown == nil {
		setExhausted(&next, p.Generation, full, networks, r.now())
	} else { // others' kinds do not keep the pool's own status from being written
		klog.FromContext(ctx).Error(unknown, "Could not determine whether a pool's secondary networks have free addresses", "pool", p.Name)
	}
	now := p.Status.DeepCopy()
	now.Nodes = nil
	again := ctrl.Result{RequeueAfter: sweepInterval}
	if none {
		again.RequeueAfter = relook
	} else if networks > 0 || unknown != nil {
		again.RequeueAfter = networksKept
	}
	if equality.Semantic.DeepEqual(*now, next) {
		return again, nil
	}
	if err := r.apply(ctx, p.Name, fieldManager, &next); err != nil {
		return ctrl.Result{}, fmt.Errorf("write the status of RDMAPool %s: %w", p.Name, err)
	}
	return again, nil
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

// selectsNone reports whether no node has the labels that the pool selects. Where a node has reported on the pool, it is not looked at.
func (r *reconciler) selectsNone(ctx context.Context, p *v1alpha1.RDMAPool) (bool, error) {
	if p.Spec.NodeSelector == nil || len(p.Status.Nodes) > 0 {
		return false, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(p.Spec.NodeSelector)
	if err != nil {
		return false, nil //nolint:nilerr // the validation of the spec reports this in the status
	}
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := r.reader.List(ctx, page, client.MatchingLabelsSelector{Selector: selector}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the nodes of RDMAPool %s: %w", p.Name, err)
	}
	return len(page.Items) == 0, nil
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
