package layout

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// resource is MIGLayout's in the API.
func resource() schema.GroupVersionResource {
	return v1alpha1.SchemeGroupVersion().WithResource("miglayouts")
}

// Objects reads MIGLayouts for one node, and reports on them.
type Objects struct {
	Node    string
	Core    kubernetes.Interface
	Dynamic dynamic.Interface
}

// Watch calls changed with the MIGLayouts that select the node, sorted by name, when they are first known and whenever they change, until ctx
// ends. Without the CRD there are none, and Watch waits for it.
func (o Objects) Watch(ctx context.Context, changed func([]v1alpha1.MIGLayout)) error {
	layouts := dynamicinformer.NewFilteredDynamicInformer(o.Dynamic, resource(), "", 0, cache.Indexers{}, nil).Informer()
	nodes := informers.NewSharedInformerFactoryWithOptions(o.Core, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector("metadata.name", o.Node).String()
	})).Core().V1().Nodes().Informer()
	err := layouts.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			klog.FromContext(ctx).V(2).Info("MIGLayouts are not known to the API server; waiting for their CRD")
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	if err != nil {
		return err
	}
	v := &view{node: o.Node, changed: changed, last: "none told yet"}
	for _, informer := range []cache.SharedIndexInformer{layouts, nodes} {
		handler := cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { v.update(layouts, nodes) },
			UpdateFunc: func(any, any) { v.update(layouts, nodes) },
			DeleteFunc: func(any) { v.update(layouts, nodes) },
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { nodes.RunWithContext(ctx) })
	wg.Go(func() { layouts.RunWithContext(ctx) })
	wg.Wait()
	return nil
}

// view is what was last told.
type view struct {
	node    string
	changed func([]v1alpha1.MIGLayout)

	mu   sync.Mutex
	last string
}

// update tells the layouts if they differ from what was told; informers call it on every event, a node's heartbeats among them.
func (v *view) update(layouts, nodes cache.SharedIndexInformer) {
	if !layouts.HasSynced() || !nodes.HasSynced() {
		return // a later event finds both lists whole
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var nodeLabels map[string]string
	if object, found, _ := nodes.GetStore().GetByKey(v.node); found {
		nodeLabels = object.(*corev1.Node).Labels
	}
	var selected []v1alpha1.MIGLayout
	var told []string
	for _, object := range layouts.GetStore().List() {
		var l v1alpha1.MIGLayout
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.(*unstructured.Unstructured).Object, &l)
		if err != nil || l.DeletionTimestamp != nil || !Selects(&l.Spec, nodeLabels) {
			continue // what cannot be read was let pass by an API server without the webhook, and selects nobody
		}
		selected = append(selected, l)
		told = append(told, fmt.Sprintf("%s/%s/%d", l.Name, l.UID, l.Generation))
	}
	slices.SortFunc(selected, func(a, b v1alpha1.MIGLayout) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(told)
	if now := strings.Join(told, " "); now != v.last {
		v.last = now
		v.changed(selected)
	}
}

// Selects says whether a node with these labels is meant.
func Selects(s *v1alpha1.MIGLayoutSpec, nodeLabels map[string]string) bool {
	if s.NodeSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(s.NodeSelector)
	return err == nil && selector.Matches(labels.Set(nodeLabels))
}

// Mistake is what is wrong with a layout's spec, nil where nothing is.
func Mistake(l *v1alpha1.MIGLayout) error {
	return l.Spec.Validate(field.NewPath("spec")).ToAggregate()
}

// Report writes the node's entry in a MIGLayout's status, by server-side apply with a manager of the node's own.
func (o Objects) Report(ctx context.Context, name string, entry v1alpha1.MIGLayoutNode) error {
	entry.Name = o.Node
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion().String(), "kind": "MIGLayout", "metadata": map[string]any{"name": name},
		"status": map[string]any{"nodes": []v1alpha1.MIGLayoutNode{entry}},
	})
	if err != nil {
		return err
	}
	force := true
	_, err = o.Dynamic.Resource(resource()).Patch(ctx, name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "gpu-plugin/" + o.Node, Force: &force}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("report on MIGLayout %s: %w", name, err)
	}
	return nil
}
