// Package v1alpha1 is gpufabric.io/v1alpha1: the resources that this project defines.
//
// +kubebuilder:object:generate=true
// +groupName=gpufabric.io
package v1alpha1

// GroupName is the API group.
const GroupName = "gpufabric.io"
