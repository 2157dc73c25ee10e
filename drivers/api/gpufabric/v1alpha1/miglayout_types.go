package v1alpha1

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MIGLayout gives the GPUs of some nodes a static MIG layout. It is applied node by node, and only to GPUs on which nothing runs.
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

	// Spec says which layout which nodes shall have.
	Spec MIGLayoutSpec `json:"spec"`

	// Status says what the nodes made of it.
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

// MIGLayoutSpec says which layout which nodes shall have.
type MIGLayoutSpec struct {
	// NodeSelector selects the nodes; without one all nodes with GPUs are meant. A node that several MIGLayouts select keeps what it has,
	// and says so in their status.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Layout is the name of one of the layouts in config.
	//
	// +kubebuilder:validation:MinLength=1
	Layout string `json:"layout"`

	// Config is mig-parted's configuration file as it is.
	Config MIGPartedConfig `json:"config"`
}

// MIGPartedConfig is a configuration file of mig-parted.
type MIGPartedConfig struct {
	// Version is v1.
	//
	// +kubebuilder:validation:Enum=v1
	Version string `json:"version"`
	// Layouts are lists of entries by the layout's name. Every GPU of a node must be meant by exactly one entry or by none.
	Layouts map[string][]MIGPartedEntry `json:"mig-configs"`
}

// MIGPartedEntry says what some GPUs of a node shall be cut into.
type MIGPartedEntry struct {
	// DeviceFilter is a PCI device ID in mig-parted's form (0x20B010DE), or a list of them: only GPUs of these models are meant.
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
	// MIGEnabled says whether MIG mode is on. Off, the GPUs are left to be handed out whole, by shares or in partitions made on demand.
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

// MarshalJSON writes one string as a string, as mig-parted's files have it.
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

// MIGLayoutState says how far a node is with a layout.
//
// +kubebuilder:validation:Enum=Applied;Waiting;Failed
type MIGLayoutState string

// The states of a node.
const (
	// MIGLayoutApplied: every GPU stands as the layout says.
	MIGLayoutApplied MIGLayoutState = "Applied"
	// MIGLayoutWaiting: something runs on a GPU that has to change; the message names it.
	MIGLayoutWaiting MIGLayoutState = "Waiting"
	// MIGLayoutFailed: the layout cannot be had on the node; the message says why.
	MIGLayoutFailed MIGLayoutState = "Failed"
)

// MIGLayoutStatus says what the nodes made of a layout.
type MIGLayoutStatus struct {
	// ObservedGeneration is the generation of the spec that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Nodes are the selected nodes; each writes its own entry.
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []MIGLayoutNode `json:"nodes,omitempty"`
}

// MIGLayoutNode is one node.
type MIGLayoutNode struct {
	// Name is the node's.
	Name string `json:"name"`
	// ObservedGeneration is the generation of the spec that the entry is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// State says how far the node is.
	State MIGLayoutState `json:"state"`
	// Reason is a CamelCase word for the state.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message says it in words.
	// +optional
	Message string `json:"message,omitempty"`
}
