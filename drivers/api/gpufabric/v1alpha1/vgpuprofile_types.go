package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VGPUProfile is a kind of GPU slice that pods request by name. It creates a DeviceClass of the same name, so that a pod can
// request a slice in a single line by its extended resource name (gpufabric.io/<name>). It also creates a ResourceClaimTemplate in
// each namespace that it lists.
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

	// Spec defines a slice of the profile.
	Spec VGPUProfileSpec `json:"spec"`

	// Status reports the objects that were created, and how many slices fit on each node.
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

// VGPUMode is the kind of device behind a slice.
//
// +kubebuilder:validation:Enum=Software;MIG;Exclusive
type VGPUMode string

// The modes of a profile.
const (
	// VGPUSoftware: a share of a GPU, whose limits a library inside the container enforces.
	VGPUSoftware VGPUMode = "Software"
	// VGPUMIG: the smallest MIG device that has the requested memory and cores.
	VGPUMIG VGPUMode = "MIG"
	// VGPUExclusive: a whole GPU with at least the requested memory.
	VGPUExclusive VGPUMode = "Exclusive"
)

// VGPUPolicyAnnotation on a DeviceClass is the policy of the VGPUProfile that created it. gpufabric-scheduler uses it to choose
// nodes and GPUs for slices of the class.
const VGPUPolicyAnnotation = GroupName + "/vgpu-policy"

// VGPUPolicy is how gpufabric-scheduler spreads slices over nodes and GPUs.
//
// +kubebuilder:validation:Enum=Binpack;Spread
type VGPUPolicy string

// The policies.
const (
	// VGPUBinpack fills one GPU before the next.
	VGPUBinpack VGPUPolicy = "Binpack"
	// VGPUSpread puts slices where there are the fewest.
	VGPUSpread VGPUPolicy = "Spread"
)

// VGPUProfileSpec defines a slice.
type VGPUProfileSpec struct {
	// Mode is the kind of device behind a slice.
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
	// Split is the maximum number of slices of a GPU, even if memory and cores would allow more. Only for Software.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Split int32 `json:"split,omitempty"`
	// NodeSelector selects the nodes that have the slices; without one every node with GPUs. Only for Software: in other modes use the
	// pod's node selector.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// ProductNames restricts the profile to GPUs with one of these product names.
	//
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ProductNames []string `json:"productNames,omitempty"`
	// Policy is how gpufabric-scheduler spreads slices over nodes and over a node's GPUs. Without one the scheduler uses its own
	// default. A pod's annotations override both. The stock scheduler ignores it: it takes the first GPU that fits.
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
	// VGPUProfileReady: the spec is valid, its DeviceClass and templates exist, and at least one slice fits on some node.
	VGPUProfileReady = "Ready"
)

// VGPUProfileStatus reports the objects that were created for a profile, and how many slices fit on each node.
type VGPUProfileStatus struct {
	// ObservedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// DeviceClass is the name of the class that was created.
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
	// ExtendedResourceName is the name by which a pod requests a slice in a single line.
	// +optional
	ExtendedResourceName string `json:"extendedResourceName,omitempty"`
	// Fits is how many slices fit on empty GPUs of all selected nodes.
	// +optional
	Fits int32 `json:"fits,omitempty"`
	// Free is how many slices still fit beside the present ResourceClaims. A GPU that is tainted (unhealthy, or given to a device
	// plugin) has none.
	//
	// +optional
	Free int32 `json:"free"`
	// Nodes reports how many fit on each node.
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []VGPUProfileNode `json:"nodes,omitempty"`
	// Conditions has the condition Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VGPUProfileNode reports how many slices fit on one node.
type VGPUProfileNode struct {
	// Name of the node.
	Name string `json:"name"`
	// GPUs is how many of its GPUs can have slices of the profile.
	GPUs int32 `json:"gpus"`
	// Fits is how many slices fit on them while they are empty.
	Fits int32 `json:"fits"`
	// Free is how many slices still fit on them beside the present ResourceClaims.
	// +optional
	Free int32 `json:"free"`
}
