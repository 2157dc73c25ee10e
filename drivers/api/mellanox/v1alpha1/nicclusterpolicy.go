// Package v1alpha1 is mellanox.com/v1alpha1 as existing manifests write it: NicClusterPolicy with the sections of the network operator's first
// release.
//
// +kubebuilder:object:generate=true
// +groupName=mellanox.com
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SchemeGroupVersion is the group and version of every kind in this package.
func SchemeGroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "mellanox.com", Version: "v1alpha1"}
}

// AddToScheme adds the kinds that the API server stores.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion(), &NicClusterPolicy{}, &NicClusterPolicyList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion())
	return nil
}

// NicClusterPolicy says which RDMA software a cluster's nodes get. There is one in a cluster: of several the oldest counts.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NicClusterPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NicClusterPolicySpec   `json:"spec,omitempty"`
	Status NicClusterPolicyStatus `json:"status,omitempty"`
}

// NicClusterPolicyList is a list of NicClusterPolicies.
//
// +kubebuilder:object:root=true
type NicClusterPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NicClusterPolicy `json:"items"`
}

// NicClusterPolicySpec has a section for each piece of software; a section that is absent is software that is not wanted. Sections of later
// releases of the network operator are kept, and reported as not served.
//
// +kubebuilder:pruning:PreserveUnknownFields
type NicClusterPolicySpec struct {
	// OFEDDriver is the NIC's kernel driver, as a DaemonSet for each operating system, kernel and architecture among the nodes with a NIC.
	// +optional
	OFEDDriver *ImageSpec `json:"ofedDriver,omitempty"`
	// DevicePlugin makes an RDMAPool of each entry of its configuration. Its image is not used: the rdma-plugin serves the pools.
	// +optional
	DevicePlugin *DevicePluginSpec `json:"devicePlugin,omitempty"`
	// RDMASharedDevicePlugin is DevicePlugin as later releases name it. Where a policy has both, DevicePlugin counts.
	// +optional
	RDMASharedDevicePlugin *DevicePluginSpec `json:"rdmaSharedDevicePlugin,omitempty"`
	// NVPeerDriver is the module that gives GPU memory to a NIC, on nodes with both.
	// +optional
	NVPeerDriver *NVPeerDriverSpec `json:"nvPeerDriver,omitempty"`
}

// ImageSpec names an image: repository/image:version. Fields of later releases (probes, upgradePolicy, imagePullSecrets) are kept, and reported where they
// are not served.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ImageSpec struct {
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9\-]+$`
	Image string `json:"image"`
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9\.\-\/:]+$`
	Repository string `json:"repository"`
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9\.\-_]+$`
	Version string `json:"version"`
}

// DevicePluginSpec is the shared RDMA device plugin.
//
// +kubebuilder:pruning:PreserveUnknownFields
type DevicePluginSpec struct {
	ImageSpec `json:",inline"`
	// Config is a config.json.
	Config string `json:"config"`
}

// NVPeerDriverSpec is the peer memory driver.
//
// +kubebuilder:pruning:PreserveUnknownFields
type NVPeerDriverSpec struct {
	ImageSpec `json:",inline"`
	// GPUDriverSourcePath is where nodes have the GPU driver's sources: /run/nvidia/driver.
	// +optional
	GPUDriverSourcePath string `json:"gpuDriverSourcePath,omitempty"`
}

// State is how far a section is.
//
// +kubebuilder:validation:Enum=ready;notReady;ignore;error
type State string

// The states.
const (
	StateReady    State = "ready"
	StateNotReady State = "notReady"
	StateIgnore   State = "ignore" // the section is absent, or not served
	StateError    State = "error"  // the section has mistakes
)

// NicClusterPolicyStatus says how far each section is.
type NicClusterPolicyStatus struct {
	// ObservedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is error if any section's is, else notReady if any section's is, else ready; ignore where another policy counts.
	// +optional
	State State `json:"state,omitempty"`
	// Reason says what is missing.
	// +optional
	Reason string `json:"reason,omitempty"`
	// AppliedStates are the sections'.
	// +listType=map
	// +listMapKey=name
	// +optional
	AppliedStates []AppliedState `json:"appliedStates,omitempty"`
}

// AppliedState is one section's state.
type AppliedState struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Message says what is missing, and what was made.
	// +optional
	Message string `json:"message,omitempty"`
}
