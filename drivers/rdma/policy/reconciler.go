// Package policy implements NicClusterPolicy. Its device plugin section becomes RDMAPools. Its driver sections become DaemonSets on
// the nodes that have the hardware. Its status gives the state of each section.
package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

const (
	// label marks the objects of a policy; its value is the policy's name.
	label = "gpufabric.io/nic-cluster-policy"
	// owner is the field manager of the controller's objects.
	owner = "gpufabric-nic-cluster-policy"
	// crdPatience is how long the controller waits for its kinds: for ever. The manager's other controllers do not need them and would
	// end with this one.
	crdPatience = 100 * 365 * 24 * time.Hour
)

// Options define where to create objects.
type Options struct {
	// Namespace is where the DaemonSets run: the controller's own.
	Namespace string
	// OFEDImage and PeerImage are the drivers' images, with the placeholders of Image; empty: the public images' name formats.
	OFEDImage, PeerImage string
	// Images are those that a policy's drivers may run. Drivers are privileged on every node with a NIC, and the author of a
	// NicClusterPolicy names their images, so an administrator sets this list. Empty: none. See allows for the forms.
	Images []string
}

// Adder returns the function that adds the controller to a manager.
func Adder(o Options) func(context.Context, ctrl.Manager) error {
	return func(_ context.Context, m ctrl.Manager) error { return o.add(m) }
}

// FromEnvironment returns the options that the controller's pod sets: POD_NAMESPACE, OFED_IMAGE, NV_PEER_IMAGE, and
// NIC_DRIVER_IMAGES with commas between images.
func FromEnvironment(env func(string) string) Options {
	images := strings.FieldsFunc(env("NIC_DRIVER_IMAGES"), func(r rune) bool { return r == ',' })
	return Options{Namespace: env("POD_NAMESPACE"), OFEDImage: env("OFED_IMAGE"), PeerImage: env("NV_PEER_IMAGE"), Images: images}
}

func (o Options) add(m ctrl.Manager) error {
	if err := errors.Join(v1alpha1.AddToScheme(m.GetScheme()), mellanox.AddToScheme(m.GetScheme())); err != nil {
		return err
	}
	// The manager's cache has the nodes and DaemonSets of compute domains only; this one needs others.
	nics, err := labels.Parse(labelNIC + "=true")
	if err != nil {
		return err
	}
	ours, err := labels.Parse(label)
	if err != nil {
		return err
	}
	drivers, err := labels.Parse(labelName + " in (" + kindOFED + "," + kindPeer + ")")
	if err != nil {
		return err
	}
	own, err := cache.New(m.GetConfig(), cache.Options{
		Scheme: m.GetScheme(), Mapper: m.GetRESTMapper(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:       {Label: nics},
			&appsv1.DaemonSet{}:  {Label: ours, Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&corev1.Pod{}:        {Label: drivers, Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&v1alpha1.RDMAPool{}: {Label: ours},
		},
	})
	if err != nil {
		return err
	}
	if err := m.Add(own); err != nil {
		return err
	}
	r := &reconciler{Options: o, client: m.GetClient(), made: own}
	// Every change leads to the same work.
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: "policies"}}}
	})
	shared := true
	return ctrl.NewControllerManagedBy(m).Named("nicclusterpolicy").WithOptions(controller.Options{SkipNameValidation: &shared,
		CacheSyncTimeout: crdPatience}).
		Watches(&mellanox.NicClusterPolicy{}, all).
		WatchesRawSource(source.Kind[client.Object](own, nodeMetadata(), all)).
		WatchesRawSource(source.Kind[client.Object](own, &appsv1.DaemonSet{}, all)).
		WatchesRawSource(source.Kind[client.Object](own, &corev1.Pod{}, all)).
		WatchesRawSource(source.Kind[client.Object](own, &v1alpha1.RDMAPool{}, all)).
		Complete(r)
}

func nodeMetadata() *metav1.PartialObjectMetadata {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	return node
}

type reconciler struct {
	Options
	client client.Client
	made   client.Reader // the objects made for policies, and the nodes with a NIC
}

// section is the result for one section of a policy.
type section struct {
	mellanox.AppliedState
	objects []client.Object // the objects that are to exist
	stay    []client.Object // objects that stay as they are, where they exist
}

// Reconcile updates everything for the oldest policy.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var policies mellanox.NicClusterPolicyList
	if err := r.client.List(ctx, &policies); err != nil {
		return ctrl.Result{}, err
	}
	slices.SortFunc(policies.Items, func(a, b mellanox.NicClusterPolicy) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	var errs []error
	for i := range policies.Items {
		p := &policies.Items[i]
		if i == 0 {
			errs = append(errs, r.serve(ctx, p))
			continue
		}
		errs = append(errs, r.report(ctx, p, mellanox.NicClusterPolicyStatus{
			ObservedGeneration: p.Generation, State: mellanox.StateIgnore,
			Reason: fmt.Sprintf("a cluster has one NicClusterPolicy, and %s is older: move what is missing there into it and delete this one",
				policies.Items[0].Name),
		}))
	}
	return ctrl.Result{}, errors.Join(errs...)
}

// serve creates, updates and removes objects for the policy.
func (r *reconciler) serve(ctx context.Context, p *mellanox.NicClusterPolicy) error {
	stored, err := r.read(ctx, p)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	var pools v1alpha1.RDMAPoolList
	var sets appsv1.DaemonSetList
	var pods corev1.PodList
	if err := errors.Join(r.made.List(ctx, &pools), r.made.List(ctx, &sets), r.made.List(ctx, &pods)); err != nil {
		return err
	}
	is := running{sets: sets.Items, pods: pods.Items}
	sections := []section{r.ofed(p, nodes, is), r.pools(p, pools.Items), r.peer(p, nodes, is)}
	var errs []error
	wanted := make(map[string]bool)
	for i := range sections {
		var refused []string
		for _, object := range sections[i].stay {
			wanted[key(object)] = true
		}
		for _, object := range sections[i].objects {
			wanted[key(object)] = true
			if err := r.apply(ctx, p, object); err != nil {
				errs, refused = append(errs, err), append(refused, err.Error())
			}
		}
		if len(refused) > 0 {
			sections[i].State, sections[i].Message = mellanox.StateError, strings.Join(refused, "; ")
		}
	}
	for i := range pools.Items {
		errs = append(errs, r.removeUnless(ctx, wanted, &pools.Items[i]))
	}
	for i := range sets.Items {
		errs = append(errs, r.removeUnless(ctx, wanted, &sets.Items[i]))
	}
	// Failures are retried, and until then the status reports them.
	unknown, err := unservedSections(stored, &p.Spec)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, r.report(ctx, p, summarise(p, append(sections, unknown...))))...)
}

// nodes are the nodes with a NIC, by name.
func (r *reconciler) nodes(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := r.made.List(ctx, &list); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b metav1.PartialObjectMetadata) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// read reads the policy again, and returns its spec with the fields that the type does not have. Both are of one generation.
func (r *reconciler) read(ctx context.Context, p *mellanox.NicClusterPolicy) (map[string]any, error) {
	raw := &unstructured.Unstructured{}
	raw.SetGroupVersionKind(mellanox.SchemeGroupVersion().WithKind("NicClusterPolicy"))
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(p), raw); err != nil {
		return nil, err
	}
	*p = mellanox.NicClusterPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, p); err != nil {
		return nil, fmt.Errorf("read NicClusterPolicy %s: %w", raw.GetName(), err)
	}
	spec, _, err := unstructured.NestedMap(raw.Object, "spec")
	return spec, err
}

// unservedSections are the sections with fields that were not used. A request of the policy is not met, so it is never
// ready.
func unservedSections(stored map[string]any, spec *mellanox.NicClusterPolicySpec) ([]section, error) {
	fields, err := unserved(stored, spec)
	if err != nil {
		return nil, err
	}
	var upgrade *mellanox.UpgradePolicySpec
	if spec.OFEDDriver != nil {
		upgrade = spec.OFEDDriver.UpgradePolicy
	}
	var sections []section
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		sections = append(sections, section{AppliedState: mellanox.AppliedState{Name: "state-" + name, State: mellanox.StateNotReady,
			Message: named(name, fields[name], upgrade)}})
	}
	return sections, nil
}

// summarise computes the policy's status from its sections.
func summarise(p *mellanox.NicClusterPolicy, sections []section) mellanox.NicClusterPolicyStatus {
	status := mellanox.NicClusterPolicyStatus{ObservedGeneration: p.Generation, State: mellanox.StateReady}
	var reasons []string
	for _, s := range sections {
		status.AppliedStates = append(status.AppliedStates, s.AppliedState)
		switch {
		case s.State == mellanox.StateError:
			status.State = mellanox.StateError
		case s.State == mellanox.StateNotReady && status.State == mellanox.StateReady:
			status.State = mellanox.StateNotReady
		case s.State != mellanox.StateNotReady:
			continue
		}
		reasons = append(reasons, s.Name+": "+s.Message)
	}
	status.Reason = strings.Join(reasons, "; ")
	return status
}

func key(o client.Object) string { return fmt.Sprintf("%T/%s", o, o.GetName()) }

// apply creates or updates an object, owned by the policy.
func (r *reconciler) apply(ctx context.Context, p *mellanox.NicClusterPolicy, object client.Object) error {
	object.SetLabels(map[string]string{label: p.Name})
	controls := true
	object.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: mellanox.SchemeGroupVersion().String(), Kind: "NicClusterPolicy", Name: p.Name, UID: p.UID, Controller: &controls,
	}})
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(fields, "status")
	return r.write(ctx, fields, r.client.Apply)
}

type applier func(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error

func (r *reconciler) write(ctx context.Context, fields map[string]any, apply applier) error {
	object := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	err := apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(owner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("write %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

func (r *reconciler) removeUnless(ctx context.Context, wanted map[string]bool, object client.Object) error {
	if wanted[key(object)] || object.GetDeletionTimestamp() != nil {
		return nil
	}
	return client.IgnoreNotFound(r.client.Delete(ctx, object))
}

func (r *reconciler) report(ctx context.Context, p *mellanox.NicClusterPolicy, status mellanox.NicClusterPolicyStatus) error {
	if equality.Semantic.DeepEqual(p.Status, status) {
		return nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return err
	}
	object := map[string]any{
		"apiVersion": mellanox.SchemeGroupVersion().String(), "kind": "NicClusterPolicy", "metadata": map[string]any{"name": p.Name},
		"status": fields,
	}
	return client.IgnoreNotFound(r.write(ctx, object, func(ctx context.Context, a runtime.ApplyConfiguration, o ...client.ApplyOption) error {
		options := make([]client.SubResourceApplyOption, len(o))
		for i := range o {
			options[i] = o[i].(client.SubResourceApplyOption)
		}
		return r.client.Status().Apply(ctx, a, options...)
	}))
}
