package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VGPUProfile is a kind of GPU slice that pods ask for by name. It makes a DeviceClass of its own name, by whose extended resource name
// (gpufabric.io/<name>) a pod asks for a slice in a single line, and a ResourceClaimTemplate in each namespace that it lists.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.spec.memory`
// +kubebuilder:printcolumn:name="Cores",type=integer,JSONPath=`.spec.cores`
// +kubebuilder:printcolumn:name="Resource",type=string,JSONPath=`.status.extendedResourceName`
// +kubebuilder:printcolumn:name="Fits",type=integer,JSONPath=`.status.fits`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type VGPUProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what a slice of the profile is.
	Spec VGPUProfileSpec `json:"spec"`

	// Status says what was made of it and what fits where.
	Status VGPUProfileStatus `json:"status,omitempty"`
}

// VGPUProfileList is a list of VGPUProfiles.
//
// +kubebuilder:object:root=true
type VGPUProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VGPUProfile `json:"items"`
}

// VGPUMode says what a slice is made of.
//
// +kubebuilder:validation:Enum=Software;MIG;Exclusive
type VGPUMode string

// The modes of a profile.
const (
	// VGPUSoftware: a share of a GPU, whose limits a library inside the container keeps.
	VGPUSoftware VGPUMode = "Software"
	// VGPUMIG: the smallest MIG device that has the memory and cores asked for.
	VGPUMIG VGPUMode = "MIG"
	// VGPUExclusive: a whole GPU with at least the memory asked for.
	VGPUExclusive VGPUMode = "Exclusive"
)

// VGPUPolicyAnnotation on a DeviceClass is the policy of the VGPUProfile that made it, by which gpufabric-scheduler chooses nodes and GPUs
// for its slices.
const VGPUPolicyAnnotation = GroupName + "/vgpu-policy"

// VGPUPolicy says how slices are spread over nodes and GPUs by a scheduler that knows it.
//
// +kubebuilder:validation:Enum=Binpack;Spread
type VGPUPolicy string

// The policies.
const (
	// VGPUBinpack fills one GPU before the next.
	VGPUBinpack VGPUPolicy = "Binpack"
	// VGPUSpread puts slices where the fewest are.
	VGPUSpread VGPUPolicy = "Spread"
)

// VGPUProfileSpec says what a slice is.
type VGPUProfileSpec struct {
	// Mode says what a slice is made of.
	Mode VGPUMode `json:"mode"`
	// Memory of a slice. Required for Software; for MIG and Exclusive the least that a device must have.
	//
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// Cores of a slice in percent of a GPU; for MIG the least share of its multiprocessors. Not for Exclusive.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Cores int32 `json:"cores,omitempty"`
	// Split is how many slices a GPU is cut into at most, whatever memory and cores leave room for. Only for Software.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Split int32 `json:"split,omitempty"`
	// NodeSelector selects the nodes that the slices are on; without one every node with GPUs. Only for Software: elsewhere the pod selects.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// ProductNames restricts the profile to GPUs with one of these product names.
	//
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ProductNames []string `json:"productNames,omitempty"`
	// Policy says how slices are spread over nodes and over a node's GPUs, for pods of gpufabric-scheduler; without one its own default holds,
	// and a pod's annotations come before both. The stock scheduler does not read it: it takes the first GPU that fits.
	//
	// +optional
	Policy VGPUPolicy `json:"policy,omitempty"`
	// Namespaces get a ResourceClaimTemplate of the profile's name.
	//
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
}

// Conditions of a VGPUProfile.
const (
	// VGPUProfileReady: the spec is valid, its DeviceClass and templates stand, and at least one slice fits somewhere.
	VGPUProfileReady = "Ready"
)

// VGPUProfileStatus says what was made of a profile and what fits where.
type VGPUProfileStatus struct {
	// ObservedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// DeviceClass is the name of the class that was made.
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
	// ExtendedResourceName is what a pod asks for in a single line.
	// +optional
	ExtendedResourceName string `json:"extendedResourceName,omitempty"`
	// Fits is how many slices fit on empty GPUs of all selected nodes.
	// +optional
	Fits int32 `json:"fits,omitempty"`
	// Free is how many slices fit beside what ResourceClaims have now. GPUs that are tainted (unhealthy, or given to a device plugin) have
	// none.
	//
	// +optional
	Free int32 `json:"free"`
	// Nodes says how many fit on each node.
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []VGPUProfileNode `json:"nodes,omitempty"`
	// Conditions are Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VGPUProfileNode is what fits on one node.
type VGPUProfileNode struct {
	// Name is the node's.
	Name string `json:"name"`
	// GPUs is how many of its GPUs can have slices of the profile.
	GPUs int32 `json:"gpus"`
	// Fits is how many slices fit on them while they are empty.
	Fits int32 `json:"fits"`
	// Free is how many slices fit on them beside what ResourceClaims have now.
	// +optional
	Free int32 `json:"free"`
}
