// Package v1alpha1 is mellanox.com/v1alpha1 as existing manifests use it: NicClusterPolicy with the sections of the network
// operator's first release, and the supported sections of later ones.
//
// +kubebuilder:object:generate=true
// +groupName=mellanox.com
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
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

// NicClusterPolicy selects the RDMA software of a cluster's nodes. A cluster has one: of several the oldest counts.
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

// NicClusterPolicySpec has a section for each piece of software; a section that is absent means that the software is not wanted.
// Sections of later releases of the network operator are stored, and reported as not supported.
//
// +kubebuilder:pruning:PreserveUnknownFields
type NicClusterPolicySpec struct {
	// Global has defaults for the image of every section.
	// +optional
	Global *GlobalSpec `json:"global,omitempty"`
	// OFEDDriver is the NIC's kernel driver, as a DaemonSet for each combination of operating system, kernel and architecture among
	// the nodes with a NIC.
	// +optional
	OFEDDriver *OFEDDriverSpec `json:"ofedDriver,omitempty"`
	// DevicePlugin creates an RDMAPool for each entry of its configuration. Its image is not used: the rdma-plugin serves the pools.
	// +optional
	DevicePlugin *DevicePluginSpec `json:"devicePlugin,omitempty"`
	// RDMASharedDevicePlugin is the name of DevicePlugin in later releases. Where a policy has both, DevicePlugin counts.
	// +optional
	RDMASharedDevicePlugin *DevicePluginSpec `json:"rdmaSharedDevicePlugin,omitempty"`
	// NVPeerDriver is the module that lets a NIC access GPU memory, on nodes with both.
	// +optional
	NVPeerDriver *NVPeerDriverSpec `json:"nvPeerDriver,omitempty"`
}

// GlobalSpec has defaults for the image of every section.
//
// +kubebuilder:pruning:PreserveUnknownFields
type GlobalSpec struct {
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._/:-]+$`
	// +optional
	Repository string `json:"repository,omitempty"`
	// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9._-]+|sha256:[a-fA-F0-9]{64})$`
	// +optional
	Version string `json:"version,omitempty"`
	// +optional
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
}

// ImageSpec names an image: repository/image:version. Fields of later releases are stored, and reported where they are not
// supported.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ImageSpec struct {
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._/-]+$`
	Image string `json:"image"`
	// Repository defaults to global's; one of the two must be given.
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._/:-]+$`
	// +optional
	Repository string `json:"repository,omitempty"`
	// Version defaults to global's; one of the two must be given. A digest (sha256: and 64 hexadecimal digits) names one image,
	// repository/image@digest, for every node.
	// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9._-]+|sha256:[a-fA-F0-9]{64})$`
	// +optional
	Version string `json:"version,omitempty"`
	// ImagePullSecrets are names of Secrets in the namespace of the drivers' pods; the default is global's.
	// +optional
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
}

// OFEDDriverSpec is the NIC's kernel driver.
//
// +kubebuilder:pruning:PreserveUnknownFields
type OFEDDriverSpec struct {
	ImageSpec `json:",inline"`
	// StartupProbe checks whether the driver has been loaded: the file .driver-ready is then in /run/mellanox/drivers, or with images
	// before DOCA 24.04 in /. The defaults are the network operator's: after 30 s, each 10 s, 120 times, and at most 10 s each.
	// +optional
	StartupProbe *ProbeSpec `json:"startupProbe,omitempty"`
	// LivenessProbe checks whether the module mlx5_core is loaded. The defaults are the network operator's: after 10 s, each 30 s, and
	// at most 10 s each; one failure restarts the driver.
	// +optional
	LivenessProbe *ProbeSpec `json:"livenessProbe,omitempty"`
	// ReadinessProbe checks the same, with the same defaults.
	// +optional
	ReadinessProbe *ProbeSpec `json:"readinessProbe,omitempty"`
	// Env is the environment of the driver's container. CREATE_IFNAMES_UDEV (true) and NVIDIA_NIC_DRIVERS_INVENTORY_PATH
	// (/mnt/drivers-inventory) have the network operator's defaults.
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// UpgradePolicy defines how nodes get a changed driver; without it each pod is replaced when somebody deletes it.
	// +optional
	UpgradePolicy *UpgradePolicySpec `json:"upgradePolicy,omitempty"`
	// TerminationGracePeriodSeconds is how long the driver may take to unload. Default: 300.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// ProbeSpec is the timing of a probe. A field that is absent or 0 has the probe's default.
//
// +kubebuilder:pruning:PreserveUnknownFields
type ProbeSpec struct {
	// +kubebuilder:validation:Minimum=0
	// +optional
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// UpgradePolicySpec defines how nodes get a changed driver.
//
// +kubebuilder:pruning:PreserveUnknownFields
type UpgradePolicySpec struct {
	// AutoUpgrade replaces the driver's pods automatically. Without it everything else here has no effect.
	// +optional
	AutoUpgrade bool `json:"autoUpgrade,omitempty"`
	// MaxParallelUpgrades is the maximum number of nodes whose driver is replaced at the same time; 0: all. Default: 1.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxParallelUpgrades *int32 `json:"maxParallelUpgrades,omitempty"`
	// Drain moves other pods away from a node before its driver is replaced. It is not supported: where it is enabled, pods are not
	// replaced automatically.
	//
	// +optional
	Drain *DrainSpec `json:"drain,omitempty"`
	// WaitForCompletion waits for pods to end first. It is not supported: where it has a podSelector, pods are not replaced
	// automatically.
	// +optional
	WaitForCompletion *WaitForCompletionSpec `json:"waitForCompletion,omitempty"`
	// SafeLoad drains a node before its driver is loaded. It is not supported: where it is true, pods are not replaced automatically.
	// +optional
	SafeLoad bool `json:"safeLoad,omitempty"`
}

// DrainSpec is the drain of a node.
//
// +kubebuilder:pruning:PreserveUnknownFields
type DrainSpec struct {
	// Enable switches the drain on. Default: true, where the section drain exists.
	// +optional
	Enable *bool `json:"enable,omitempty"`
}

// WaitForCompletionSpec selects the pods to wait for.
//
// +kubebuilder:pruning:PreserveUnknownFields
type WaitForCompletionSpec struct {
	// +optional
	PodSelector string `json:"podSelector,omitempty"`
}

// DevicePluginSpec is the shared RDMA device plugin.
//
// +kubebuilder:pruning:PreserveUnknownFields
type DevicePluginSpec struct {
	ImageSpec `json:",inline"`
	// Config is a config.json. Without it the policy makes no pools: those of the chart's ConfigMap rdma-devices are served, as with the
	// network operator.
	// +optional
	Config *string `json:"config,omitempty"`
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

// State is the state of a section.
//
// +kubebuilder:validation:Enum=ready;notReady;ignore;error
type State string

// The states.
const (
	StateReady    State = "ready"
	StateNotReady State = "notReady"
	StateIgnore   State = "ignore" // the section is absent, or not supported
	StateError    State = "error"  // the section has mistakes
)

// NicClusterPolicyStatus has the state of each section.
type NicClusterPolicyStatus struct {
	// ObservedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is error if any section's is, else notReady if any section's is, else ready; ignore where another policy counts.
	// +optional
	State State `json:"state,omitempty"`
	// Reason names the missing part.
	// +optional
	Reason string `json:"reason,omitempty"`
	// AppliedStates are the states of the sections.
	// +listType=map
	// +listMapKey=name
	// +optional
	AppliedStates []AppliedState `json:"appliedStates,omitempty"`
}

// AppliedState is one section's state.
type AppliedState struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Message names the missing parts and the objects that were created.
	// +optional
	Message string `json:"message,omitempty"`
}
