package v1alpha1

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MIGLayout gives the GPUs of some nodes a static MIG layout. Each node applies it by itself, and only to GPUs on which nothing
// runs.
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

	// Spec says which layout which nodes get.
	Spec MIGLayoutSpec `json:"spec"`

	// Status says what the nodes have applied.
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

// MIGLayoutSpec says which layout which nodes get.
type MIGLayoutSpec struct {
	// NodeSelector selects the nodes; without one it selects all nodes with GPUs. A node that several MIGLayouts select keeps its
	// present layout, and reports that in their status.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Layout is the name of one of the layouts in config.
	//
	// +kubebuilder:validation:MinLength=1
	Layout string `json:"layout"`

	// Config is a configuration file of mig-parted, unchanged.
	Config MIGPartedConfig `json:"config"`
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

// MIGPartedEntry says how some GPUs of a node are partitioned.
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
	// MIGEnabled says whether MIG mode is on. Where it is off, the GPUs can be allocated whole, as shares, or in MIG devices made on
	// demand.
	MIGEnabled bool `json:"mig-enabled"`
	// MIGDevices says how many instances of which profile each GPU gets: {"1g.5gb": 2, "3g.20gb": 1}.
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
		return fmt.Errorf("%.60s is neither a string nor a list of strings", raw)
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
		return fmt.Errorf("%.60s is neither all nor a list of GPU indices", raw)
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

// MIGLayoutReady is the condition that every selected node has the layout.
const MIGLayoutReady = "Ready"

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
	// MIGLayoutFailed: the node cannot have the layout; the message says why.
	MIGLayoutFailed MIGLayoutState = "Failed"
)

// MIGLayoutStatus says what the nodes have applied.
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
}
