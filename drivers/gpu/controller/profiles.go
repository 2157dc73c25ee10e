package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
)

// profiles creates the objects of each VGPUProfile.
type profiles struct {
	client client.Client
	reader client.Reader // not cached
	claims *claims
	now    func() time.Time
}

// ExtendedResourceName is the resource with which a pod requests slices of a profile in a single line.
func ExtendedResourceName(profile string) string { return v1alpha1.GroupName + "/" + profile }

// Reconcile makes one profile's DeviceClass and templates, and counts the slices that fit.
func (r *profiles) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var p v1alpha1.VGPUProfile
	if err := r.client.Get(ctx, request.NamespacedName, &p); err != nil || p.DeletionTimestamp != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // its children are garbage-collected
	}
	next := v1alpha1.VGPUProfileStatus{ObservedGeneration: p.Generation, Conditions: slices.Clone(p.Status.Conditions)}
	if err := p.Spec.Validate(field.NewPath("spec")).ToAggregate(); err != nil {
		setReady(&next.Conditions, p.Generation, false, "InvalidSpec", err.Error(), r.now())
		return ctrl.Result{}, r.write(ctx, &p, next)
	}
	class, err := r.makeAll(ctx, &p)
	if err == nil && isNew(&p) {
		err = r.removeTemplates(ctx, &p)
	}
	if err != nil {
		setReady(&next.Conditions, p.Generation, false, reasonNotMade, err.Error(), r.now())
		if written := r.write(ctx, &p, next); written != nil {
			return ctrl.Result{}, written
		}
		return ctrl.Result{}, err
	}
	// A server whose gate DRAExtendedResource is off drops the name.
	next.DeviceClass, next.ExtendedResourceName = p.Name, ptr.Deref(class.Spec.ExtendedResourceName, "")
	nodes, unknown, err := r.count(ctx, &p)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("count the shares that fit of VGPUProfile %s: %w", p.Name, err)
	}
	next.Nodes = nodes
	for _, n := range nodes {
		next.Fits += n.Fits
		next.Free += n.Free
	}
	names := ""
	if len(unknown) > 0 {
		names = "; productNames: no GPU that gpu-plugin publishes is named " + strings.Join(unknown, ", ")
	}
	if next.Fits == 0 {
		setReady(&next.Conditions, p.Generation, false, "NothingFits",
			"no GPU that gpu-plugin publishes has room for a slice: look at memory, productNames and nodeSelector"+names, r.now())
	} else {
		setReady(&next.Conditions, p.Generation, true, "Fits",
			fmt.Sprintf("%d slices fit on %d nodes while their GPUs are empty, %d beside what claims have", next.Fits, len(nodes), next.Free)+names,
			r.now())
	}
	return ctrl.Result{RequeueAfter: recount}, r.write(ctx, &p, next)
}

func (r *profiles) write(ctx context.Context, p *v1alpha1.VGPUProfile, next v1alpha1.VGPUProfileStatus) error {
	if equality.Semantic.DeepEqual(p.Status, next) {
		return nil
	}
	if err := applyStatus(ctx, r.client, "VGPUProfile", p.Name, fieldManager, &next); err != nil {
		return fmt.Errorf("write the status of VGPUProfile %s: %w", p.Name, err)
	}
	return nil
}

// makeAll creates the DeviceClass, which it returns as it is stored, and the templates. It leaves objects of others under those names
// alone.
func (r *profiles) makeAll(ctx context.Context, p *v1alpha1.VGPUProfile) (*resourceapi.DeviceClass, error) {
	owner := *metav1.NewControllerRef(p, v1alpha1.SchemeGroupVersion().WithKind("VGPUProfile"))
	resource := ExtendedResourceName(p.Name)
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Annotations: policyAnnotation(&p.Spec)},
		Spec: resourceapi.DeviceClassSpec{
			ExtendedResourceName: &resource,
			Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: Selector(p.Name, &p.Spec)}}},
		}}
	if err := r.make(ctx, class, &resourceapi.DeviceClass{}, owner, func(a, b client.Object) bool {
		return equality.Semantic.DeepEqual(a.(*resourceapi.DeviceClass).Spec, b.(*resourceapi.DeviceClass).Spec) &&
			a.GetAnnotations()[v1alpha1.VGPUPolicyAnnotation] == b.GetAnnotations()[v1alpha1.VGPUPolicyAnnotation]
	}); err != nil {
		return nil, err
	}
	for _, namespace := range p.Spec.Namespaces {
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace}}
		template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "slice", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: p.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}}}
		// A template's spec cannot be changed, and never has to be: it only names the class.
		if err := r.make(ctx, template, &resourceapi.ResourceClaimTemplate{}, owner,
			func(client.Object, client.Object) bool { return true }); err != nil {
			return nil, err
		}
	}
	return class, nil
}

// reasonNotMade is the reason of a profile's condition Ready whose objects could not be made, or removed.
const reasonNotMade = "NotMade"

// isNew reports whether a profile's spec was not processed yet, or not to the end.
func isNew(p *v1alpha1.VGPUProfile) bool {
	ready := meta.FindStatusCondition(p.Status.Conditions, "Ready")
	return p.Status.ObservedGeneration != p.Generation || ready == nil || ready.Reason == reasonNotMade
}

// removeTemplates removes the profile's templates in namespaces that its spec no longer names.
func (r *profiles) removeTemplates(ctx context.Context, p *v1alpha1.VGPUProfile) error {
	var templates resourceapi.ResourceClaimTemplateList
	if err := r.reader.List(ctx, &templates, client.MatchingFields{metav1.ObjectNameField: p.Name}); err != nil {
		return fmt.Errorf("list the ResourceClaimTemplates of VGPUProfile %s: %w", p.Name, err)
	}
	for i := range templates.Items {
		template := &templates.Items[i]
		if !metav1.IsControlledBy(template, p) || slices.Contains(p.Spec.Namespaces, template.Namespace) {
			continue
		}
		if err := r.client.Delete(ctx, template, client.Preconditions{UID: &template.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove the ResourceClaimTemplate in namespace %s, which the spec no longer names: %w", template.Namespace, err)
		}
	}
	return nil
}

// make creates an object, or updates its own object if that differs.
func (r *profiles) make(ctx context.Context, want, now client.Object, owner metav1.OwnerReference,
	same func(a, b client.Object) bool) error {
	want.SetOwnerReferences([]metav1.OwnerReference{owner})
	what := fmt.Sprintf("%T %s", want, client.ObjectKeyFromObject(want))
	err := r.reader.Get(ctx, client.ObjectKeyFromObject(want), now)
	if apierrors.IsNotFound(err) {
		if err := r.client.Create(ctx, want); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make %s: %w", what, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", what, err)
	}
	if !metav1.IsControlledBy(now, &metav1.ObjectMeta{UID: owner.UID}) {
		return fmt.Errorf("%s exists and does not belong to this VGPUProfile: rename one of the two", what)
	}
	if same(now, want) {
		return nil
	}
	want.SetResourceVersion(now.GetResourceVersion())
	keepOthers(want, now)
	if err := r.client.Update(ctx, want); err != nil {
		return fmt.Errorf("update %s: %w", what, err)
	}
	return nil
}

// policyAnnotation has the policy of the profile, for gpufabric-scheduler.
func policyAnnotation(s *v1alpha1.VGPUProfileSpec) map[string]string {
	if s.Policy == "" {
		return nil
	}
	return map[string]string{v1alpha1.VGPUPolicyAnnotation: string(s.Policy)}
}

// keepOthers keeps the labels and annotations that others gave an object.
func keepOthers(want, now client.Object) {
	annotations := maps.Clone(now.GetAnnotations())
	delete(annotations, v1alpha1.VGPUPolicyAnnotation)
	if mine := want.GetAnnotations(); annotations == nil {
		annotations = mine
	} else {
		maps.Copy(annotations, mine)
	}
	want.SetAnnotations(annotations)
	want.SetLabels(now.GetLabels())
}

// Selector is the CEL expression of a profile's DeviceClass. The devices of a Software profile are those that gpu-plugin makes for
// it, on the profile's nodes only. The other modes choose among existing devices, so the pod selects the nodes.
func Selector(name string, s *v1alpha1.VGPUProfileSpec) string {
	const attributes, capacity = "device.attributes['gpu.nvidia.com']", "device.capacity['gpu.nvidia.com']"
	terms := []string{"device.driver == 'gpu.nvidia.com'"}
	switch s.Mode {
	case v1alpha1.VGPUSoftware:
		return strings.Join(append(terms, attributes+".type == 'shared'", "'vgpuProfile' in "+attributes,
			attributes+".vgpuProfile == "+strconv.Quote(name)), " && ")
	case v1alpha1.VGPUMIG:
		terms = append(terms, attributes+".type == 'mig'")
	default:
		terms = append(terms, attributes+".type == 'gpu'")
	}
	if s.Memory != nil {
		terms = append(terms, fmt.Sprintf("%s.memory.compareTo(quantity(%q)) >= 0", capacity, s.Memory.String()))
	}
	if s.Cores > 0 {
		terms = append(terms, fmt.Sprintf("%s.cores.compareTo(quantity(%q)) >= 0", capacity, strconv.Itoa(int(s.Cores))))
	}
	if len(s.ProductNames) > 0 {
		quoted := make([]string, len(s.ProductNames))
		for i, n := range s.ProductNames {
			quoted[i] = strconv.Quote(n)
		}
		terms = append(terms, fmt.Sprintf("%s.productName in [%s]", attributes, strings.Join(quoted, ", ")))
	}
	return strings.Join(terms, " && ")
}

// count returns how many slices of a profile fit on the GPUs of each node, both while they are empty and beside the present claims, and the
// product names of the profile that no published GPU has, quoted.
func (r *profiles) count(ctx context.Context, p *v1alpha1.VGPUProfile) (out []v1alpha1.VGPUProfileNode, unknown []string, err error) {
	taken, err := r.claims.allocated(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list ResourceClaims: %w", err)
	}
	named := map[string]bool{}
	byNode := map[string]*nodeDevices{}
	page := &resourceapi.ResourceSliceList{}
	for {
		if err := r.reader.List(ctx, page, client.MatchingFields{resourceapi.ResourceSliceSelectorDriver: devices.Driver}, client.Limit(pageSize),
			client.Continue(page.Continue)); err != nil {
			return nil, nil, fmt.Errorf("list ResourceSlices: %w", err)
		}
		for _, s := range page.Items {
			if s.Spec.NodeName == nil {
				continue
			}
			node := byNode[*s.Spec.NodeName]
			if node == nil {
				node = &nodeDevices{}
				byNode[*s.Spec.NodeName] = node
			}
			for _, d := range s.Spec.Devices {
				named[text(d, devices.AttrProductName)] = true
				node.see(d, s.Spec.Pool.Name, serves(p, d), taken)
			}
		}
		if page.Continue == "" {
			break
		}
	}
	for _, name := range p.Spec.ProductNames {
		if !named[name] {
			unknown = append(unknown, strconv.Quote(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		if n := byNode[name]; len(n.served) > 0 {
			out = append(out, v1alpha1.VGPUProfileNode{Name: name, GPUs: gpusOf(n.served), Fits: fits(n.served), Free: n.free()})
		}
	}
	return out, unknown, nil
}
