package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

const (
	labelPartOf = "app.kubernetes.io/part-of"
	ownName     = "gpufabric"
	ownPrefix   = ownName + "-"
	// bindings is the resource with the namespaces of gpufabric's service accounts.
	bindings = "clusterrolebindings.rbac.authorization.k8s.io"
	// helmNamespace is the annotation in which Helm writes the release's namespace on everything that it makes.
	helmNamespace = "meta.helm.sh/release-namespace"
)

// Release describes where gpufabric's own pods are. It comes from objects that only an administrator writes: everybody may give a pod of
// their own gpufabric's labels.
type Release struct {
	// Namespaces are sorted. There are several where the RDMA or vGPU plugin has a namespace of its own.
	Namespaces []string `json:"namespaces,omitempty"`
	// Unsure is the reason why the namespaces are a guess; empty: they are not.
	Unsure string `json:"unsure,omitempty"`
}

// Has reports whether gpufabric's own pods may be in a namespace.
func (r Release) Has(namespace string) bool { return slices.Contains(r.Namespaces, namespace) }

// release finds gpufabric's namespaces: those of the service accounts to which its cluster roles are bound. Where bindings cannot be
// read it is the namespace that Helm wrote on gpufabric's DeviceClasses, CRDs or webhook, else system.
func (s *Snapshot) release(system string) Release {
	there := map[string]bool{}
	for i := range s.Bindings {
		for _, account := range subjects(&s.Bindings[i]) {
			there[account.Namespace] = true
		}
	}
	if len(there) > 0 {
		return Release{Namespaces: slices.Sorted(maps.Keys(there))}
	}
	if s.Reads(bindings) {
		return Release{Namespaces: []string{system}} // nothing is installed, or without the chart
	}
	where := "it is the namespace that was named (--system-namespace)"
	installed := func(o client.Object) {
		if to := o.GetAnnotations()[helmNamespace]; to != "" && o.GetLabels()[labelPartOf] == ownName && len(there) == 0 {
			there[to] = true
			where = fmt.Sprintf("Helm wrote that it is that of %s", o.GetName())
		}
	}
	for i := range s.Classes {
		installed(&s.Classes[i])
	}
	for i := range s.Webhooks {
		installed(&s.Webhooks[i])
	}
	for i := range s.CRDs {
		installed(&s.CRDs[i])
	}
	if len(there) == 0 {
		there[system] = true
	}
	out := Release{Namespaces: slices.Sorted(maps.Keys(there))}
	out.Unsure = fmt.Sprintf("only pods and DaemonSets of namespace %s are taken for gpufabric's: which service accounts are bound to its "+
		"roles (list %s) could not be read, and %s; labels alone say nothing, since everybody may set them", out.Namespaces[0], bindings, where)
	return out
}

// subjects are gpufabric's service accounts of a binding of one of gpufabric's cluster roles.
func subjects(b *rbacv1.ClusterRoleBinding) []rbacv1.Subject {
	if !strings.HasPrefix(b.Name, ownPrefix) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(b.Subjects), func(subject rbacv1.Subject) bool {
		return subject.Kind != rbacv1.ServiceAccountKind || subject.Namespace == "" || !strings.HasPrefix(subject.Name, ownPrefix)
	})
}

// disown removes gpufabric's labels from pods and workloads of other namespaces, so that nothing takes them for gpufabric's.
func (s *Snapshot) disown() {
	for i := range s.Pods {
		if p := &s.Pods[i]; !s.Release.Has(p.Namespace) {
			p.Labels = foreign(p.Labels)
			delete(p.Labels, v1beta1.LabelComputeDomain)
		}
	}
	for i := range s.DaemonSets {
		if d := &s.DaemonSets[i]; !s.Release.Has(d.Namespace) {
			d.Labels = foreign(d.Labels)
		}
	}
	for i := range s.Deployments {
		if d := &s.Deployments[i]; !s.Release.Has(d.Namespace) {
			d.Labels = foreign(d.Labels)
		}
	}
}

// foreign is a copy of labels without the labels that identify gpufabric's own objects: a watch's objects are shared.
func foreign(labels map[string]string) map[string]string {
	kept := maps.Clone(labels)
	for _, key := range []string{labelPartOf, labelName} {
		if kept[key] == ownName {
			delete(kept, key)
		}
	}
	return kept
}
