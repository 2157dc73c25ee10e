package migrate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/doctor/rivals"
)

const (
	// pageSize is how many objects of a kind are in memory at a time.
	pageSize = 500
	// maxFindings bounds an answer: a thousand objects with ten containers each.
	maxFindings = 10000
)

// reading is a reading of a cluster.
type reading struct {
	client    client.Reader
	namespace string // empty: all
	rules     map[string]Rule
	plan      Plan

	replicas bool
	classes  map[string]bool // DeviceClasses about our devices
	cluster  rivals.Cluster
}

// Read reads a cluster, or the objects of a namespace with the nodes, and returns the changes. A kind that cannot be read is named in the
// plan; the error is for a cluster of which nothing can be read.
func Read(ctx context.Context, c client.Reader, namespace string) (*Plan, error) {
	rules, err := Rules()
	if err != nil {
		return nil, err
	}
	r := &reading{client: c, namespace: namespace, rules: rules, classes: map[string]bool{}}
	kinds := r.kinds()
	failed := 0
	var last error
	for _, k := range kinds {
		if err := r.list(ctx, k); err != nil {
			failed, last = failed+1, err
			r.plan.Missing = append(r.plan.Missing, fmt.Sprintf("%s: %v", k.name, err))
		}
	}
	if failed == len(kinds) {
		return nil, fmt.Errorf("the cluster cannot be read at all: %w", last)
	}
	for _, found := range rivals.Find(r.cluster) {
		r.add(found.Object, match{rule: "plugin", says: "it " + found.Says})
	}
	order := map[Verdict]int{NotServed: 0, Change: 1, Unchanged: 2}
	slices.SortStableFunc(r.plan.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(order[a.Verdict], order[b.Verdict]), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field))
	})
	return &r.plan, nil
}

// kind is a resource that is read, page by page.
type kind struct {
	name string // as kubectl takes it
	list client.ObjectList
	each func(client.Object)
	wide bool // it has no namespace, or is read in all of them
}

// kinds are in the order in which they are needed: the meaning of the others depends on nodes and classes.
func (r *reading) kinds() []kind {
	all := []kind{
		{"nodes", &corev1.NodeList{}, r.node, true},
		{"deviceclasses.resource.k8s.io", &resourceapi.DeviceClassList{}, r.class, true},
		{"resourceslices.resource.k8s.io", &resourceapi.ResourceSliceList{}, r.slice, true},
		{"resourceclaimtemplates.resource.k8s.io", &resourceapi.ResourceClaimTemplateList{}, r.claimTemplate, false},
		{"resourceclaims.resource.k8s.io", &resourceapi.ResourceClaimList{}, r.claim, false},
		{"daemonsets.apps", &appsv1.DaemonSetList{}, r.daemonSet, r.namespace == ""},
		{"deployments.apps", &appsv1.DeploymentList{}, r.workload, false},
		{"statefulsets.apps", &appsv1.StatefulSetList{}, r.workload, false},
		{"replicasets.apps", &appsv1.ReplicaSetList{}, r.workload, false},
		{"jobs.batch", &batchv1.JobList{}, r.workload, false},
		{"cronjobs.batch", &batchv1.CronJobList{}, r.workload, false},
		{"pods", &corev1.PodList{}, r.workload, false},
	}
	for _, c := range []struct {
		name, rule string
		kind       schema.GroupVersionKind
	}{
		{"computedomains.resource.nvidia.com", "claims", schema.GroupVersionKind{Group: "resource.nvidia.com", Version: "v1beta1",
			Kind: "ComputeDomain"}},
		{"clusterpolicies.nvidia.com", "operator", schema.GroupVersionKind{Group: "nvidia.com", Version: "v1", Kind: "ClusterPolicy"}},
		{"nicclusterpolicies.mellanox.com", "nic-policy", schema.GroupVersionKind{Group: "mellanox.com", Version: "v1alpha1",
			Kind: "NicClusterPolicy"}},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(c.kind.GroupVersion().WithKind(c.kind.Kind + "List"))
		all = append(all, kind{c.name, list, func(o client.Object) { r.custom(o, c.rule) }, c.kind.Kind != "ComputeDomain"})
	}
	return all
}

// list reads the pages of a kind. A cluster without the kind has none.
func (r *reading) list(ctx context.Context, k kind) error {
	options := client.ListOptions{Limit: pageSize}
	if !k.wide {
		options.Namespace = r.namespace
	}
	for {
		page := k.list.DeepCopyObject().(client.ObjectList) //nolint:errcheck,forcetypeassert // a copy has its original's type
		err := r.client.List(ctx, page, &options)
		switch {
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err //nolint:wrapcheck // the caller names the kind
		}
		if err := meta.EachListItem(page, func(o runtime.Object) error {
			if object, ok := o.(client.Object); ok && !generated(object) {
				k.each(object)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("read the list: %w", err)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// generated reports whether another object that is read, or gpufabric, made an object.
func generated(o client.Object) bool {
	if o.GetLabels()["app.kubernetes.io/part-of"] == "gpufabric" || o.GetLabels()["app.kubernetes.io/name"] == "gpufabric" {
		return true
	}
	owner := metav1.GetControllerOf(o)
	if owner == nil {
		return false
	}
	switch owner.Kind {
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "Pod", "ComputeDomain":
		return true
	}
	return false
}

func (r *reading) add(object string, matches ...match) {
	for _, m := range matches {
		if len(r.plan.Findings) >= maxFindings {
			r.plan.Dropped++
			continue
		}
		rule := r.rules[m.rule]
		says := plain(rule.Here)
		if m.says != "" {
			says += " (" + m.says + ")"
		}
		r.plan.Findings = append(r.plan.Findings, Finding{Object: object, Field: m.field, Rule: m.rule, Verdict: rule.Verdict, Here: says})
	}
}

func name(kind string, o client.Object) string {
	if o.GetNamespace() != "" {
		return kind + " " + o.GetNamespace() + "/" + o.GetName()
	}
	return kind + " " + o.GetName()
}

func (r *reading) node(o client.Object) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	r.replicas = r.replicas || sharesByReplicas(n)
	small := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	small.Status.Allocatable = n.Status.Allocatable
	r.cluster.Nodes = append(r.cluster.Nodes, small)
}

// slice keeps whose a slice is, without its devices.
func (r *reading) slice(o client.Object) {
	if s, ok := o.(*resourceapi.ResourceSlice); ok {
		small := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.Name}}
		small.Spec.Driver, small.Spec.Pool, small.Spec.NodeName = s.Spec.Driver, s.Spec.Pool, s.Spec.NodeName
		r.cluster.Slices = append(r.cluster.Slices, small)
	}
}

func (r *reading) class(o client.Object) {
	if c, ok := o.(*resourceapi.DeviceClass); ok {
		found := ofClass(c.Name, &c.Spec)
		r.classes[c.Name] = len(found) > 0 && found[0].rule != "imex"
		r.add(name("deviceclass", c), found...)
	}
}

func (r *reading) claimTemplate(o client.Object) {
	if c, ok := o.(*resourceapi.ResourceClaimTemplate); ok {
		r.add(name("resourceclaimtemplate", c), ofClaim(&c.Spec.Spec, field.NewPath("spec", "spec"), r.classes)...)
	}
}

func (r *reading) claim(o client.Object) {
	if c, ok := o.(*resourceapi.ResourceClaim); ok {
		r.add(name("resourceclaim", c), ofClaim(&c.Spec, field.NewPath("spec"), r.classes)...)
	}
}

// daemonSet keeps its name and images, by which other device plugins are recognised, and its pods' requests.
func (r *reading) daemonSet(o client.Object) {
	d, ok := o.(*appsv1.DaemonSet)
	if !ok {
		return
	}
	small := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name, Labels: d.Labels}}
	for _, c := range d.Spec.Template.Spec.Containers {
		small.Spec.Template.Spec.Containers = append(small.Spec.Template.Spec.Containers, corev1.Container{Image: c.Image})
	}
	r.cluster.DaemonSets = append(r.cluster.DaemonSets, small)
	r.workload(o)
}

// workload reads the pod's template of an object that nothing else made.
func (r *reading) workload(o client.Object) {
	kind, at := "", "spec.template."
	var template *corev1.PodTemplateSpec
	switch x := o.(type) {
	case *appsv1.DaemonSet:
		kind, template = "daemonset", &x.Spec.Template
	case *appsv1.Deployment:
		kind, template = "deployment", &x.Spec.Template
	case *appsv1.StatefulSet:
		kind, template = "statefulset", &x.Spec.Template
	case *appsv1.ReplicaSet:
		kind, template = "replicaset", &x.Spec.Template
	case *batchv1.Job:
		if x.Status.CompletionTime != nil {
			return
		}
		kind, template = "job", &x.Spec.Template
	case *batchv1.CronJob:
		kind, at, template = "cronjob", "spec.jobTemplate.spec.template.", &x.Spec.JobTemplate.Spec.Template
	case *corev1.Pod:
		if x.Status.Phase == corev1.PodSucceeded || x.Status.Phase == corev1.PodFailed {
			return
		}
		object := name("pod", x)
		if owner := metav1.GetControllerOf(x); owner != nil {
			object += " of " + strings.ToLower(owner.Kind) + " " + owner.Name
		}
		r.add(object, ofPod(x.Annotations, &x.Spec, "", r.replicas)...)
		return
	default:
		return
	}
	r.add(name(kind, o), ofPod(template.Annotations, &template.Spec, at, r.replicas)...)
}

// custom adds an object of a CustomResourceDefinition.
func (r *reading) custom(o client.Object, rule string) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	object := name(strings.ToLower(u.GetKind()), u)
	if rule != "operator" {
		r.add(object, match{rule: rule})
		return
	}
	for _, part := range []string{"devicePlugin", "migManager"} {
		if on, found, _ := unstructured.NestedBool(u.Object, "spec", part, "enabled"); on || !found {
			r.add(object, match{field: "spec." + part + ".enabled", rule: rule, says: "it is on"})
		}
	}
}
