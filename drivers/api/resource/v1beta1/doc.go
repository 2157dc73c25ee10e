// Package v1beta1 is resource.nvidia.com/v1beta1 as existing manifests use it: ComputeDomain, and the configurations that claims
// and device classes have for the drivers gpu.nvidia.com and compute-domain.nvidia.com.
//
// +kubebuilder:object:generate=true
// +groupName=resource.nvidia.com
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group.
const GroupName = "resource.nvidia.com"

// SchemeGroupVersion is the group and version of every kind in this package.
func SchemeGroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1beta1"}
}

// AddToScheme adds the kinds that the API server stores. The configurations are not among them: they are part of other objects, and
// Decode reads them.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion(), &ComputeDomain{}, &ComputeDomainList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion())
	return nil
}

// Labels of nodes.
const (
	// LabelClique is the node's NVLink clique, "<ClusterUUID>.<CliqueID>", from NVML's fabric information.
	LabelClique = "nvidia.com/gpu.clique"
	// LabelComputeDomain is the UID of the ComputeDomain that the node is part of. Everything that the controller creates for a domain
	// has the same label.
	LabelComputeDomain = "resource.nvidia.com/computeDomain"
)

// AnnotationOwner on a ComputeDomain is KIND/NAME of a workload of its namespace, such as Job/train: the domain is deleted with it.
const AnnotationOwner = "gpufabric.io/owner"
