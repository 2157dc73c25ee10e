// Package snapshot reads a cluster for gpufabric's own commands: the objects at one moment, each kind read once with the
// user's rights. It omits data that the tools must not show: environment variables, arguments and annotations of tenants are never part
// of a Snapshot.
package snapshot

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/v1beta1"
)

// Snapshot is a cluster at a moment. Lists are in the API server's order, by namespace and name.
type Snapshot struct {
	// Server is the API server.
	Server Server
	// Nodes are all nodes, with only our annotations.
	Nodes []corev1.Node
	// Slices are the ResourceSlices of all drivers.
	Slices []resourceapi.ResourceSlice
	// Classes are all DeviceClasses.
	Classes []resourceapi.DeviceClass
	// Claims and Templates are ResourceClaims and ResourceClaimTemplates. The configuration of others' drivers is left out.
	Claims    []resourceapi.ResourceClaim
	Templates []resourceapi.ResourceClaimTemplate
	// Pods are gpufabric's own pods, waiting pods, and those that Scope names.
	Pods []corev1.Pod
	// Events are the events of type Warning, and all in the namespace that Scope names. The message is kept where it is about devices.
	Events []corev1.Event
	// DaemonSets and Deployments of all owners: other drivers are found among them.
	DaemonSets  []appsv1.DaemonSet
	Deployments []appsv1.Deployment
	// CRDs and Webhooks are the metadata of CustomResourceDefinitions and ValidatingWebhookConfigurations.
	CRDs     []metav1.PartialObjectMetadata
	Webhooks []metav1.PartialObjectMetadata
	// Bindings are the ClusterRoleBindings of gpufabric's roles, with its service accounts.
	Bindings []rbacv1.ClusterRoleBinding
	// Release has gpufabric's namespaces. Objects of other namespaces do not have its labels here.
	Release Release
	// Domains, RDMAPools, MIGLayouts and VGPUProfiles are gpufabric's custom resources.
	Domains      []v1beta1.ComputeDomain
	RDMAPools    []v1alpha1.RDMAPool
	MIGLayouts   []v1alpha1.MIGLayout
	VGPUProfiles []v1alpha1.VGPUProfile
	// Quotas are ResourceQuotas.
	Quotas []corev1.ResourceQuota
	// Namespaces are all namespaces, with their labels.
	Namespaces []corev1.Namespace
	// Leases are the kubelets' heartbeats, one per node, and those of gpufabric's own roles.
	Leases []coordinationv1.Lease
	// Unread is an object or list that could not be read, and the reason.
	Unread []Unread
}

// Server has the facts about the API server.
type Server struct {
	// URL is its address. It is empty in a Snapshot that is shared.
	URL string `json:"url,omitempty"`
	// Emulates is the minor version that it behaves as, such as 35; empty: its own.
	Emulates string `json:"emulates,omitempty"`
	// Version is its gitVersion: v1.36.1.
	Version string `json:"version"`
	// Groups are the API groups and versions that it serves: resource.k8s.io/v1.
	Groups []string `json:"groups"`
	// Taken is the time of the Snapshot by the API server's clock, or by the reader's where the server sent none.
	Taken time.Time `json:"taken"`
	// Skew is how far the reader's clock is ahead of the API server's, in whole seconds, because the server's Date header is no more
	// precise.
	Skew time.Duration `json:"skew"`
	// Requests counts the Snapshot's requests, Throttled those that the API server refused with 429.
	Requests  int `json:"requests"`
	Throttled int `json:"throttled"`
}

// Serves reports whether the server serves a group and version, as resource.k8s.io/v1.
func (s Server) Serves(groupVersion string) bool { return slices.Contains(s.Groups, groupVersion) }

// Why is why something could not be read.
type Why string

// The reasons.
const (
	// Forbidden: the user lacks the right.
	Forbidden Why = "Forbidden"
	// Absent: the API server does not serve the kind.
	Absent Why = "Absent"
	// Silent: the API server did not answer in time.
	Silent Why = "Silent"
	// Broken: any other error.
	Broken Why = "Broken"
	// Bounded: the cluster has more objects than were read.
	Bounded Why = "Bounded"
	// Cut: the archive of the Snapshot is truncated.
	Cut Why = "Cut"
)

// Unread is a kind that was not read, or not completely.
type Unread struct {
	// Kind is the resource's name in lower case and plural, with its group: resourceslices.resource.k8s.io.
	Kind string `json:"kind"`
	// Verb is the right that was used: list.
	Verb string `json:"verb"`
	// Namespace is where; empty: in all.
	Namespace string `json:"namespace,omitempty"`
	Why       Why    `json:"why"`
	Message   string `json:"message"`
}

// String is a sentence's worth.
func (u Unread) String() string {
	where := "in all namespaces"
	if u.Namespace != "" {
		where = "in namespace " + u.Namespace
	}
	return fmt.Sprintf("%s %s %s: %s", u.Verb, u.Kind, where, u.Message)
}

// Reads reports whether a kind was read whole.
func (s *Snapshot) Reads(kind string) bool {
	for _, u := range s.Unread {
		if u.Kind == kind {
			return false
		}
	}
	return true
}
