package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RDMAPool offers the RDMA devices of some nodes under one resource name. It has the fields of an entry in the RDMA plugin's
// config.json, and a node selector. A node serves both the pools of its file and those that select it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Resource",type=string,JSONPath=`.status.resource`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodeCount`
// +kubebuilder:printcolumn:name="Devices",type=integer,JSONPath=`.status.devices`
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=`.status.healthyDevices`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RDMAPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec selects the pool's devices and defines how pods get them.
	Spec RDMAPoolSpec `json:"spec"`

	// Status reports the devices that the nodes serve.
	Status RDMAPoolStatus `json:"status,omitempty"`
}

// RDMAPoolList is a list of RDMAPools.
//
// +kubebuilder:object:root=true
type RDMAPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RDMAPool `json:"items"`
}

// RDMAPoolSpec selects a pool's devices and defines how pods get them.
type RDMAPoolSpec struct {
	// NodeSelector selects the nodes that have the pool; without one all nodes have it.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	RDMAPoolConfig `json:",inline"`
}

// RDMAPoolConfig is an entry of config.json's configList, and has the same form in an RDMAPool. The first five fields are those of
// k8s-rdma-shared-dev-plugin.
type RDMAPoolConfig struct {
	// ResourceName is the resource's name without its prefix: hca_shared_devices_a.
	//
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9_]+$`
	// +kubebuilder:validation:MaxLength=63
	ResourceName string `json:"resourceName"`

	// ResourcePrefix precedes the name, with a slash between them. Default: rdma.
	//
	// +optional
	ResourcePrefix string `json:"resourcePrefix,omitempty"`

	// RDMAHCAMax is how many units of the resource a node has, over all devices of the pool. With deviceNodes: Allocated a unit is a
	// share of one HCA, and a pod that asks for several units gets shares of as many different HCAs as possible. With deviceNodes: All
	// a unit gives every HCA of the pool. In an exclusive pool it must be 0: there a unit is a whole HCA.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	// +optional
	RDMAHCAMax int32 `json:"rdmaHcaMax,omitempty"`

	// Devices are names of network interfaces. It is an older form of selectors.ifNames; exactly one of the two must be given.
	//
	// +optional
	Devices []string `json:"devices,omitempty"`

	// Selectors select the devices. A device must match every selector that is given, and matches a selector by any of its values.
	//
	// +optional
	Selectors *RDMASelectors `json:"selectors,omitempty"`

	// Mode is whether pods share an HCA. Default: Shared.
	//
	// +optional
	Mode RDMAPoolMode `json:"mode,omitempty"`

	// DeviceNodes selects the HCAs whose device nodes a container gets. Default: Allocated, so that a unit is a share of one HCA. In a
	// config.json, and in a NicClusterPolicy, the default is All, the meaning of a unit in k8s-rdma-shared-dev-plugin: a unit gives
	// every HCA of the pool, and with rdmaHcaMax: 1 one pod of the node has them all.
	//
	// +optional
	DeviceNodes RDMADeviceNodes `json:"deviceNodes,omitempty"`

	// ExcludeTopology does not report the NUMA node to the kubelet, so that the topology manager does not restrict the pool.
	//
	// +optional
	ExcludeTopology bool `json:"excludeTopology,omitempty"`
}

// RDMAPoolMode is whether pods share an HCA.
//
// +kubebuilder:validation:Enum=Shared;Exclusive
type RDMAPoolMode string

// The modes of a pool.
const (
	// RDMAShared divides rdmaHcaMax units among the HCAs; a pod gets shares.
	RDMAShared RDMAPoolMode = "Shared"
	// RDMAExclusive gives whole HCAs: as many units as HCAs, each for one container.
	RDMAExclusive RDMAPoolMode = "Exclusive"
)

// RDMADeviceNodes selects the HCAs whose device nodes a container gets.
//
// +kubebuilder:validation:Enum=Allocated;All
type RDMADeviceNodes string

// The choices of device nodes.
const (
	// RDMANodesAllocated gives the device nodes of the allocated HCAs only.
	RDMANodesAllocated RDMADeviceNodes = "Allocated"
	// RDMANodesAll gives those of every HCA of the pool, as k8s-rdma-shared-dev-plugin does.
	RDMANodesAll RDMADeviceNodes = "All"
)

// RDMASelectors select RDMA devices. The first five are those of k8s-rdma-shared-dev-plugin.
type RDMASelectors struct {
	// Vendors are PCI vendor IDs, four hexadecimal digits: 15b3.
	// +optional
	Vendors []string `json:"vendors,omitempty"`
	// DeviceIDs are PCI device IDs, four hexadecimal digits: 1021.
	// +optional
	DeviceIDs []string `json:"deviceIDs,omitempty"`
	// Drivers are names of kernel drivers: mlx5_core.
	// +optional
	Drivers []string `json:"drivers,omitempty"`
	// IfNames are names of network interfaces: ibp3s0.
	// +optional
	IfNames []string `json:"ifNames,omitempty"`
	// LinkTypes are types of the network interface: ether or infiniband. For a device without an interface its link layer counts.
	// +optional
	LinkTypes []string `json:"linkTypes,omitempty"`

	// PCIAddresses are addresses of PCI functions: 0000:3b:00.0.
	// +optional
	PCIAddresses []string `json:"pciAddresses,omitempty"`
	// ACPIIndexes are the numbers that the firmware gives to onboard devices (the function's acpi_index), decimal, from 1: 101.
	// +optional
	ACPIIndexes []string `json:"acpiIndexes,omitempty"`
	// PFNames are network interfaces of physical functions, each with an optional range of virtual functions: ens2f0, or ens2f0#0,2-7.
	// Without a range a name selects the function's virtual functions, or the function itself where it has none.
	// +optional
	PFNames []string `json:"pfNames,omitempty"`
	// RootDevices are PCI addresses of physical functions, with ranges as in pfNames: 0000:3b:00.0#0-3.
	// +optional
	RootDevices []string `json:"rootDevices,omitempty"`
	// PKeys are InfiniBand partition keys, 0x0001 to 0xffff; the membership bit (0x8000) is not compared.
	// +optional
	PKeys []string `json:"pKeys,omitempty"`
	// LinkLayers are link layers of a port: InfiniBand or Ethernet.
	// +optional
	LinkLayers []string `json:"linkLayers,omitempty"`
	// NUMANodes are NUMA nodes: 0.
	// +optional
	NUMANodes []int32 `json:"numaNodes,omitempty"`
	// IsRDMA selects devices that have RDMA. All devices of a pool have it, so true selects every device that the other selectors
	// select, and false is the same as leaving it out.
	//
	// +optional
	IsRDMA bool `json:"isRdma,omitempty"`
	// MinRateGbps is the minimum rate of a port, in Gb/s.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinRateGbps int32 `json:"minRateGbps,omitempty"`
}

// Conditions of an RDMAPool.
const (
	// RDMAPoolReady: the spec is valid and every selected node has a healthy device in the pool, and units to allocate of it.
	RDMAPoolReady = "Ready"
	// RDMAPoolConflicting: another pool has the same resource name, or has one of this pool's devices.
	RDMAPoolConflicting = "Conflicting"
	// RDMAPoolExhausted: a secondary network whose devices are the pool's has no address left. Pools without such networks lack it.
	RDMAPoolExhausted = "NetworkExhausted"
)

// RDMAPoolStatus reports the devices of a pool that the nodes serve.
type RDMAPoolStatus struct {
	// ObservedGeneration is the generation of the spec that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Resource is the name that pods ask for: rdma/hca_shared_devices_a.
	// +optional
	Resource string `json:"resource,omitempty"`
	// NodeCount is how many nodes have devices in the pool.
	// +optional
	NodeCount int32 `json:"nodeCount,omitempty"`
	// Devices is how many devices the pool has on all nodes.
	// +optional
	Devices int32 `json:"devices,omitempty"`
	// HealthyDevices is how many of them can carry traffic.
	// +optional
	HealthyDevices int32 `json:"healthyDevices,omitempty"`
	// Conditions are Ready and Conflicting, and NetworkExhausted where whereabouts gives out addresses for the pool's devices.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Nodes are the nodes with the pool; each node writes its own entry.
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []RDMAPoolNode `json:"nodes,omitempty"`
}

// RDMAPoolNode is a pool on one node.
type RDMAPoolNode struct {
	// Name of the node.
	Name string `json:"name"`
	// ObservedGeneration is the generation of the spec that the node serves.
	ObservedGeneration int64 `json:"observedGeneration"`
	// Devices is how many devices match.
	Devices int32 `json:"devices"`
	// HealthyDevices is how many of them can carry traffic.
	HealthyDevices int32 `json:"healthyDevices"`
	// Units is how many units, or claims where the device plugin is off, can be allocated now.
	Units int32 `json:"units"`
	// Closed is true where the node's RDMA devices are in exclusive mode (rdma system set netns exclusive): a pod with its own network
	// namespace then cannot open the pool's devices.
	// +optional
	Closed bool `json:"closed,omitempty"`
	// Conflicts are the other pools that have a device of this pool on this node, and those devices.
	// +optional
	Conflicts []string `json:"conflicts,omitempty"`
	// Unmatched are the pool's values that select no device of this node, each by itself, by their paths: selectors.vendors[1]. Of many
	// the first are listed.
	// +listType=atomic
	// +optional
	Unmatched []string `json:"unmatched,omitempty"`
	// Message is the reason why there are no devices, or fewer healthy ones than devices.
	// +optional
	Message string `json:"message,omitempty"`
}
