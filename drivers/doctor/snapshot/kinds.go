package snapshot

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/v1beta1"
)

// kind is the list of objects that one goroutine reads.
type kind struct {
	resource   schema.GroupResource
	namespaced bool
	options    []client.ListOption
	list       func() client.ObjectList
	// reduce removes the parts of an object that are not kept.
	reduce func(client.Object)
	// keep puts an object into a Snapshot.
	keep func(*Snapshot, client.Object)
}

// pointer is a pointer to an object of a kind.
type pointer[T any] interface {
	*T
	client.Object
}

// one makes a kind.
func one[T any, P pointer[T]](
	group, resource string, empty client.ObjectList, to func(*Snapshot) *[]T, reduce func(P), options ...client.ListOption,
) kind {
	return kind{
		resource: schema.GroupResource{Group: group, Resource: resource}, options: options,
		list:   func() client.ObjectList { return empty.DeepCopyObject().(client.ObjectList) },
		reduce: func(o client.Object) { reduce(o.(P)) },
		keep:   func(s *Snapshot, o client.Object) { *to(s) = append(*to(s), *o.(P)) },
	}
}

// everywhere marks a kind whose objects are in namespaces.
func (k kind) everywhere() kind {
	k.namespaced = true
	return k
}

// kinds lists the kinds to read, in the order in which the requests start.
func kinds(scope Scope) []kind {
	if scope.Preflight {
		return append(ground(false), pods(client.MatchingLabels{labelName: PreflightJobs}, client.InNamespace(scope.System)))
	}
	all := append(ground(true),
		pods(client.MatchingLabels{labelName: ownName}),
		pods(client.HasLabels{v1beta1.LabelComputeDomain}),
		pods(client.MatchingFields{"status.phase": string(corev1.PodPending)}),
		events(client.MatchingFields{"type": corev1.EventTypeWarning}),
		one("coordination.k8s.io", "leases", &coordinationv1.LeaseList{}, func(s *Snapshot) *[]coordinationv1.Lease { return &s.Leases },
			plain[coordinationv1.Lease], client.InNamespace(corev1.NamespaceNodeLease)).everywhere(),
		one("apps", "deployments", &appsv1.DeploymentList{}, func(s *Snapshot) *[]appsv1.Deployment { return &s.Deployments },
			reduceDeployment).everywhere(),
		metadata(admissionv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"), "validatingwebhookconfigurations",
			func(s *Snapshot) *[]metav1.PartialObjectMetadata { return &s.Webhooks }),
		one(rbacv1.GroupName, "clusterrolebindings", &rbacv1.ClusterRoleBindingList{},
			func(s *Snapshot) *[]rbacv1.ClusterRoleBinding { return &s.Bindings }, reduceBinding, client.MatchingLabels{labelPartOf: ownName}),
	)
	all = append(append(all, dynamicResources()...), customResources()...)
	if scope.Namespace != "" {
		all = append(all, events(client.InNamespace(scope.Namespace)))
	}
	if scope.Pod != "" {
		all = append(all, pods(client.MatchingFields{"metadata.name": scope.Pod}, client.InNamespace(scope.Namespace)))
	}
	return all
}

// labelName is the label by which pods of a program are selected.
const labelName = "app.kubernetes.io/name"

// ground are the kinds that an installation depends on. whole reports whether ResourceSlices have their devices.
func ground(whole bool) []kind {
	return []kind{
		one("", "nodes", &corev1.NodeList{}, func(s *Snapshot) *[]corev1.Node { return &s.Nodes }, reduceNode),
		one("", "resourcequotas", &corev1.ResourceQuotaList{}, func(s *Snapshot) *[]corev1.ResourceQuota { return &s.Quotas },
			plain[corev1.ResourceQuota]).everywhere(),
		one("", "namespaces", &corev1.NamespaceList{}, func(s *Snapshot) *[]corev1.Namespace { return &s.Namespaces }, plain[corev1.Namespace]),
		one("apps", "daemonsets", &appsv1.DaemonSetList{}, func(s *Snapshot) *[]appsv1.DaemonSet { return &s.DaemonSets },
			reduceDaemonSet).everywhere(),
		metadata(crds(), "customresourcedefinitions", func(s *Snapshot) *[]metav1.PartialObjectMetadata { return &s.CRDs }),
		one(resourceapi.GroupName, "resourceslices", &resourceapi.ResourceSliceList{},
			func(s *Snapshot) *[]resourceapi.ResourceSlice { return &s.Slices }, reduceSlice(whole)),
	}
}

// reduceSlice keeps a slice whole, or without its devices: they are most of it.
func reduceSlice(whole bool) func(*resourceapi.ResourceSlice) {
	return func(s *resourceapi.ResourceSlice) {
		reduceMeta(s)
		if !whole {
			s.Spec.Devices, s.Spec.SharedCounters = nil, nil
		}
	}
}

// dynamicResources are the kinds of resource.k8s.io.
func dynamicResources() []kind {
	const group = resourceapi.GroupName
	return []kind{
		one(group, "resourceclaims", &resourceapi.ResourceClaimList{}, func(s *Snapshot) *[]resourceapi.ResourceClaim { return &s.Claims },
			reduceClaim).everywhere(),
		one(group, "resourceclaimtemplates", &resourceapi.ResourceClaimTemplateList{},
			func(s *Snapshot) *[]resourceapi.ResourceClaimTemplate { return &s.Templates }, reduceTemplate).everywhere(),
		one(group, "deviceclasses", &resourceapi.DeviceClassList{}, func(s *Snapshot) *[]resourceapi.DeviceClass { return &s.Classes },
			reduceClass),
	}
}

// customResources are gpufabric's kinds.
func customResources() []kind {
	const group = v1alpha1.GroupName
	return []kind{
		one(v1beta1.GroupName, "computedomains", &v1beta1.ComputeDomainList{},
			func(s *Snapshot) *[]v1beta1.ComputeDomain { return &s.Domains }, plain[v1beta1.ComputeDomain]).everywhere(),
		one(group, "rdmapools", &v1alpha1.RDMAPoolList{}, func(s *Snapshot) *[]v1alpha1.RDMAPool { return &s.RDMAPools },
			plain[v1alpha1.RDMAPool]),
		one(group, "miglayouts", &v1alpha1.MIGLayoutList{}, func(s *Snapshot) *[]v1alpha1.MIGLayout { return &s.MIGLayouts },
			plain[v1alpha1.MIGLayout]),
		one(group, "vgpuprofiles", &v1alpha1.VGPUProfileList{}, func(s *Snapshot) *[]v1alpha1.VGPUProfile { return &s.VGPUProfiles },
			plain[v1alpha1.VGPUProfile]),
	}
}

// metadata makes a kind of which only the metadata is read.
func metadata(of schema.GroupVersionKind, resource string, to func(*Snapshot) *[]metav1.PartialObjectMetadata) kind {
	empty := &metav1.PartialObjectMetadataList{}
	of.Kind += "List"
	empty.SetGroupVersionKind(of)
	return one(of.Group, resource, empty, to, plain[metav1.PartialObjectMetadata])
}

func pods(which ...client.ListOption) kind {
	return one("", "pods", &corev1.PodList{}, func(s *Snapshot) *[]corev1.Pod { return &s.Pods }, reducePod, which...).everywhere()
}

func events(which client.ListOption) kind {
	return one("", "events", &corev1.EventList{}, func(s *Snapshot) *[]corev1.Event { return &s.Events }, reduceEvent, which).everywhere()
}

// in is the namespace that the kind is read in; empty: all.
func (k kind) in() string {
	options := client.ListOptions{}
	options.ApplyOptions(k.options)
	return options.Namespace
}
