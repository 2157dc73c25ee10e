package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// resource is the name of RDMAPools in paths of the API.
const resource = "rdmapools"

// Client reads RDMAPools for one node, and reports on them.
type Client struct {
	node  string
	core  kubernetes.Interface
	pools rest.Interface
}

// NewClient makes a client for the node of that name.
func NewClient(config *rest.Config, core kubernetes.Interface, node string) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	version := v1alpha1.SchemeGroupVersion()
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	pools, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for RDMAPools: %w", err)
	}
	return &Client{node: node, core: core, pools: pools}, nil
}

// Watch calls changed with the pools that select the node, sorted by name, when they are first known and whenever they change, until ctx
// ends. Without the CRD there are none, and Watch waits for it.
func (c *Client) Watch(ctx context.Context, changed func([]Object)) error {
	view := &view{changed: changed, last: []Object{{}}}
	poolInformer := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.pools, resource, "", fields.Everything()),
		&v1alpha1.RDMAPool{}, 0, nil)
	nodeInformer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(c.core.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", c.node)),
		&corev1.Node{}, 0, nil)
	for _, informer := range []cache.SharedIndexInformer{poolInformer, nodeInformer} {
		err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
			if apierrors.IsNotFound(err) {
				klog.FromContext(ctx).V(2).Info("The API server does not serve RDMAPools; waiting for their CRD")
				return
			}
			cache.DefaultWatchErrorHandler(ctx, reflector, err)
		})
		if err != nil {
			return err
		}
		handler := cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { view.update(c.node, poolInformer, nodeInformer) },
			UpdateFunc: func(any, any) { view.update(c.node, poolInformer, nodeInformer) },
			DeleteFunc: func(any) { view.update(c.node, poolInformer, nodeInformer) },
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	var group sync.WaitGroup
	group.Go(func() { nodeInformer.RunWithContext(ctx) })
	group.Go(func() { poolInformer.RunWithContext(ctx) })
	group.Go(func() {
		// The first events come while the lists count as incomplete, and there may be none afterwards.
		if cache.WaitForCacheSync(ctx.Done(), poolInformer.HasSynced, nodeInformer.HasSynced) {
			view.update(c.node, poolInformer, nodeInformer)
		}
	})
	group.Wait()
	return nil
}

// view is the last reported view of the pools.
type view struct {
	changed func([]Object)

	mu   sync.Mutex
	last []Object
}

// update reports the pools if they have changed. Informers call it on every event, including a node's heartbeats.
func (v *view) update(node string, poolInformer, nodeInformer cache.SharedIndexInformer) {
	if !poolInformer.HasSynced() || !nodeInformer.HasSynced() {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	self := &corev1.Node{}
	if object, found, _ := nodeInformer.GetStore().GetByKey(node); found {
		self = object.(*corev1.Node)
	}
	var all []*v1alpha1.RDMAPool
	for _, object := range poolInformer.GetStore().List() {
		all = append(all, object.(*v1alpha1.RDMAPool))
	}
	pools := selecting(all, self).Pools
	if slices.EqualFunc(pools, v.last, func(a, b Object) bool { return a.Same(&b) }) {
		return
	}
	v.last = pools
	v.changed(pools)
}

// Report writes the node's entry in the status of an RDMAPool, by server-side apply with the node's own field manager: nodes do not
// contend for the object, and none writes another's entry. A nil entry removes it.
func (c *Client) Report(ctx context.Context, pool string, entry *v1alpha1.RDMAPoolNode) error {
	status := map[string]any{}
	if entry != nil {
		entry.Name = c.node
		status["nodes"] = []*v1alpha1.RDMAPoolNode{entry}
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion().String(), "kind": "RDMAPool", "metadata": map[string]any{"name": pool}, "status": status,
	})
	if err != nil {
		return err
	}
	force := true
	err = c.pools.Patch(types.ApplyPatchType).Resource(resource).Name(pool).SubResource("status").
		VersionedParams(&metav1.PatchOptions{FieldManager: "rdma-plugin/" + c.node, Force: &force}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil // The pool was deleted together with its status.
	}
	if err != nil {
		return fmt.Errorf("report on RDMAPool %s: %w", pool, err)
	}
	return nil
}
