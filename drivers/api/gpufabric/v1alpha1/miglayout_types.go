package v1alpha1

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MIGLayout gives the GPUs of some nodes a MIG layout: a static one (layout and config), one that follows demand (auto), or one for
// each GPU (gpus). Each node applies it by itself, and never to what is in use.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Layout",type=string,JSONPath=`.spec.layout`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MIGLayout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec selects nodes and defines their layout.
	Spec MIGLayoutSpec `json:"spec"`

	// Status reports the layouts that the nodes have applied.
	Status MIGLayoutStatus `json:"status,omitempty"`
}

// MIGLayoutList is a list of MIGLayouts.
//
// +kubebuilder:object:root=true
type MIGLayoutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MIGLayout `json:"items"`
}

// MIGLayoutSpec selects nodes and defines their layout. Exactly one of config (with layout), auto and gpus is set.
//
// +kubebuilder:validation:ExactlyOneOf=config;auto;gpus
// +kubebuilder:validation:XValidation:rule="has(self.layout) == has(self.config)",message="layout and config need each other"
type MIGLayoutSpec struct {
	// NodeSelector selects the nodes; without one it selects all nodes with GPUs. A node that several MIGLayouts select keeps its
	// present layout, and reports that in their status.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Layout is the name of one of the layouts in config.
	//
	// +kubebuilder:validation:MinLength=1
	// +optional
	Layout string `json:"layout,omitempty"`

	// Config is a configuration file of mig-parted, unchanged.
	//
	// +optional
	Config MIGPartedConfig `json:"config,omitzero"`

	// Auto gives the nodes' GPUs their layouts by demand. The controller makes a MIGLayout with gpus for each node, and changes it for
	// pods that wait. A node that another MIGLayout selects is left out.
	//
	// +optional
	Auto *MIGAuto `json:"auto,omitempty"`

	// GPUs are explicit layouts, one a GPU. A GPU of the node that is not among them stays as it is.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=uuid
	// +optional
	GPUs []MIGLayoutGPU `json:"gpus,omitempty"`
}

// MIGWhole is the shape of a GPU without MIG instances.
const MIGWhole = "whole"

// MIGAuto lists the shapes that GPUs may get by demand.
type MIGAuto struct {
	// Shapes are the kinds of devices that GPUs are made into. Pods that want another shape cause no change.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=profile
	Shapes []MIGAutoShape `json:"shapes"`
}

// MIGAutoShape is a kind of devices, with bounds over all GPUs of the layout together.
type MIGAutoShape struct {
	// Profile is a MIG profile as NVML names it (1g.10gb), or whole.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Profile string `json:"profile"`
	// Reserve bounds the number of free devices that are kept for pods to come. Without it the reserve follows the arrivals alone.
	//
	// +optional
	Reserve MIGReserve `json:"reserve,omitzero"`
	// Max is how many devices of the shape there may be; 0: as many as fit.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	// +optional
	Max int32 `json:"max,omitempty"`
}

// MIGReserve bounds a reserve, in devices.
type MIGReserve struct {
	// Min is the smallest reserve.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	// +optional
	Min int32 `json:"min,omitempty"`
	// Max is the largest reserve; 0: the reserve follows the arrivals without a bound.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	// +optional
	Max int32 `json:"max,omitempty"`
}

// MIGLayoutGPU is the layout of one GPU.
type MIGLayoutGPU struct {
	// UUID of the GPU, as NVML writes it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid"`
	// Instances are its MIG instances. Without any the GPU is offered whole.
	//
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Instances []MIGLayoutInstance `json:"instances,omitempty"`
	// Withdrawn are names of its devices that the node leaves out of its ResourceSlices.
	//
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Withdrawn []string `json:"withdrawn,omitempty"`
}

// MIGLayoutInstance is one MIG instance of a GPU.
type MIGLayoutInstance struct {
	// Profile as NVML names it: 1g.10gb.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Profile string `json:"profile"`
	// Start is the memory slice at which the instance begins.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=15
	Start int32 `json:"start"`
}

// MIGPartedConfig is a configuration file of mig-parted.
type MIGPartedConfig struct {
	// Version is v1.
	//
	// +kubebuilder:validation:Enum=v1
	Version string `json:"version"`
	// Layouts are lists of entries by the layout's name. At most one entry may apply to each GPU of a node.
	Layouts map[string][]MIGPartedEntry `json:"mig-configs"`
}

// MIGPartedEntry partitions some GPUs of a node.
type MIGPartedEntry struct {
	// DeviceFilter is a PCI device ID in mig-parted's form (0x20B010DE), or a list of them: the entry applies only to GPUs of these
	// models.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	DeviceFilter StringOrList `json:"device-filter,omitempty"`
	// Devices are NVML indices of GPUs, or all.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Devices AllOrIndices `json:"devices"`
	// MIGEnabled is whether MIG mode is on. Where it is off, the GPUs can be allocated whole, as shares, or in MIG devices made on
	// demand.
	MIGEnabled bool `json:"mig-enabled"`
	// MIGDevices is the number of instances of each profile per GPU: {"1g.5gb": 2, "3g.20gb": 1}.
	//
	// +optional
	MIGDevices map[string]int32 `json:"mig-devices,omitempty"`
}

// StringOrList is a string, or a list of strings.
type StringOrList []string

// UnmarshalJSON reads either form.
func (s *StringOrList) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*s = nil
		if one != "" {
			*s = StringOrList{one}
		}
		return nil
	}
	var many []string
	if err := json.Unmarshal(raw, &many); err != nil {
		return fmt.Errorf("%.60s is not a string or a list of strings", raw)
	}
	*s = many
	return nil
}

// MarshalJSON writes one string as a string, as in mig-parted's files.
func (s StringOrList) MarshalJSON() ([]byte, error) {
	if len(s) == 1 {
		return json.Marshal(s[0])
	}
	return json.Marshal([]string(s))
}

// AllOrIndices is the word all, or a list of GPU indices.
type AllOrIndices struct {
	All     bool    `json:"-"`
	Indices []int32 `json:"-"`
}

// UnmarshalJSON reads either form.
func (a *AllOrIndices) UnmarshalJSON(raw []byte) error {
	var word string
	if json.Unmarshal(raw, &word) == nil {
		if word != "all" {
			return fmt.Errorf("%.60q: allowed are all and a list of GPU indices", word)
		}
		*a = AllOrIndices{All: true}
		return nil
	}
	var indices []int32
	if err := json.Unmarshal(raw, &indices); err != nil {
		return fmt.Errorf("%.60s is not all or a list of GPU indices", raw)
	}
	*a = AllOrIndices{Indices: indices}
	return nil
}

// MarshalJSON writes the form that was read.
func (a AllOrIndices) MarshalJSON() ([]byte, error) {
	if a.All {
		return json.Marshal("all")
	}
	if a.Indices == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(a.Indices)
}

// MIGLayoutState is the state of a layout on a node.
//
// +kubebuilder:validation:Enum=Applied;Waiting;Failed
type MIGLayoutState string

// The states of a node.
const (
	// MIGLayoutApplied: every GPU has the layout.
	MIGLayoutApplied MIGLayoutState = "Applied"
	// MIGLayoutWaiting: something runs on a GPU that must change; the message names it.
	MIGLayoutWaiting MIGLayoutState = "Waiting"
	// MIGLayoutFailed: the node cannot have the layout; the message has the reason.
	MIGLayoutFailed MIGLayoutState = "Failed"
)

// MIGLayoutStatus reports the layouts that the nodes have applied.
type MIGLayoutStatus struct {
	// ObservedGeneration is the generation of the spec that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions has the condition Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Nodes are the selected nodes; each node writes its own entry.
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []MIGLayoutNode `json:"nodes,omitempty"`
}

// MIGLayoutNode is one node.
type MIGLayoutNode struct {
	// Name of the node.
	Name string `json:"name"`
	// ObservedGeneration is the generation of the spec that the entry is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// State of the layout on the node.
	State MIGLayoutState `json:"state"`
	// Reason is a CamelCase word for the state.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message explains the state.
	// +optional
	Message string `json:"message,omitempty"`
	// GPUs are the node's GPUs, where the layout has gpus.
	// +listType=map
	// +listMapKey=uuid
	// +optional
	GPUs []MIGNodeGPU `json:"gpus,omitempty"`
	// Profiles are the MIG profiles of the node's GPUs, by the GPUs' product names, where the layout has gpus.
	// +listType=map
	// +listMapKey=productName
	// +listMapKey=name
	// +optional
	Profiles []MIGNodeProfile `json:"profiles,omitempty"`
}

// MIGNodeGPU is a GPU as it is.
type MIGNodeGPU struct {
	// UUID of the GPU.
	UUID string `json:"uuid"`
	// Device is the name of the whole GPU in ResourceSlices, with which the names of its MIG devices begin.
	Device string `json:"device"`
	// ProductName as NVML writes it.
	// +optional
	ProductName string `json:"productName,omitempty"`
	// MemoryBytes is the size of its memory.
	// +optional
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// Multiprocessors is the number of its multiprocessors that MIG instances can have together.
	// +optional
	Multiprocessors int32 `json:"multiprocessors,omitempty"`
	// Instances are its present MIG instances.
	// +listType=atomic
	// +optional
	Instances []MIGLayoutInstance `json:"instances,omitempty"`
	// Whole reports whether it can be offered whole.
	// +optional
	Whole bool `json:"whole,omitempty"`
	// MIG reports whether it can have MIG instances.
	// +optional
	MIG bool `json:"mig,omitempty"`
	// State is Applied where the GPU has its layout, Waiting where something in use must change, Failed where it cannot have it.
	// +optional
	State MIGLayoutState `json:"state,omitempty"`
	// Message explains the state, and why the GPU cannot be offered whole or cut.
	// +optional
	Message string `json:"message,omitempty"`
}

// MIGNodeProfile is a MIG profile of a kind of GPU, as NVML describes it.
type MIGNodeProfile struct {
	// ProductName of the GPUs.
	ProductName string `json:"productName"`
	// Name of the profile: 1g.10gb.
	Name string `json:"name"`
	// ID is the driver's ID for the profile.
	ID int32 `json:"id"`
	// ComputeSlices is the number of compute slices, Size of memory slices.
	ComputeSlices int32 `json:"computeSlices"`
	Size          int32 `json:"size"`
	// Starts are the memory slices at which an instance may begin.
	// +listType=atomic
	Starts []int32 `json:"starts"`
	// Max is how many fit on an empty GPU.
	Max int32 `json:"max"`
	// MemoryBytes is one instance's memory.
	MemoryBytes int64 `json:"memoryBytes"`
	// Multiprocessors of an instance; the engines follow.
	Multiprocessors int32 `json:"multiprocessors"`
	// +optional
	CopyEngines int32 `json:"copyEngines,omitempty"`
	// +optional
	Decoders int32 `json:"decoders,omitempty"`
	// +optional
	Encoders int32 `json:"encoders,omitempty"`
	// +optional
	JPEGEngines int32 `json:"jpegEngines,omitempty"`
	// +optional
	OFAEngines int32 `json:"ofaEngines,omitempty"`
}

const (
	// MIGByDemandLabel marks the MIGLayouts that the controller makes of an auto layout. Its value is the auto layout's UID.
	MIGByDemandLabel = "gpufabric.io/mig-by-demand"
	// MIGNodeLabel is the node of such a MIGLayout, as MIGNodeValue writes it.
	MIGNodeLabel = "gpufabric.io/mig-node"
)

// ByDemand reports whether the controller made the layout of an auto layout.
func (l *MIGLayout) ByDemand() bool { return l.Labels[MIGByDemandLabel] != "" }

// MIGNodeValue is the value of MIGNodeLabel for a node: a hash, since a node's name may be longer than a label's value.
func MIGNodeValue(node string) string {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(node))
	return fmt.Sprintf("%016x", hash.Sum64())
}
