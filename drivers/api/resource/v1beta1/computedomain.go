package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ComputeDomain is a set of nodes whose GPUs may share memory over NVLink (through IMEX) for as long as the domain exists. A pod
// joins by a claim made from the domain's ResourceClaimTemplate; the node it lands on becomes part of the domain.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=cd
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.summary.ready`
// +kubebuilder:printcolumn:name="Clique",type=string,JSONPath=`.status.summary.clique`
// +kubebuilder:printcolumn:name="Channel",type=string,JSONPath=`.status.summary.channel`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.summary.why`
// +kubebuilder:printcolumn:name="Nodes",type=integer,priority=1,JSONPath=`.spec.numNodes`
// +kubebuilder:printcolumn:name="Template",type=string,priority=1,JSONPath=`.spec.channel.resourceClaimTemplate.name`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type ComputeDomain struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec defines the domain. It cannot be changed.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a ComputeDomain's spec cannot be changed: create another"
	Spec ComputeDomainSpec `json:"spec"`

	// Status is the observed state.
	Status ComputeDomainStatus `json:"status,omitempty"`
}

// ComputeDomainSpec defines a domain.
type ComputeDomainSpec struct {
	// NumNodes is how many nodes must be ready for the domain to be Ready. 0: the domain is Ready at once and takes whatever nodes
	// its pods bring.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=0
	// +optional
	NumNodes int `json:"numNodes"`

	// Channel defines the claims of the domain's pods.
	Channel ComputeDomainChannelSpec `json:"channel"`
}

// AllocationMode is the number of IMEX channels that a claim gets.
//
// +kubebuilder:validation:Enum=Single;All
type AllocationMode string

// The allocation modes.
const (
	// AllocationModeSingle gives one channel: the one that the domain holds, which is channel 0 of a domain with IMEX daemons of its own.
	AllocationModeSingle AllocationMode = "Single"
	// AllocationModeAll gives every channel that the driver has.
	AllocationModeAll AllocationMode = "All"
)

// ComputeDomainChannelSpec defines the claims of a domain's pods.
type ComputeDomainChannelSpec struct {
	// ResourceClaimTemplate is made by the controller, in the domain's namespace.
	ResourceClaimTemplate ComputeDomainResourceClaimTemplate `json:"resourceClaimTemplate"`

	// AllocationMode is the number of channels that a claim gets: Single (one) or All.
	//
	// +kubebuilder:default=Single
	// +optional
	AllocationMode AllocationMode `json:"allocationMode,omitempty"`
}

// ComputeDomainResourceClaimTemplate names a template.
type ComputeDomainResourceClaimTemplate struct {
	// Name of the ResourceClaimTemplate that pods of the domain name.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
}

// Readiness is the state of a domain or of a node in it, in the words that existing consumers know.
//
// +kubebuilder:validation:Enum=Ready;NotReady
type Readiness string

// The states.
const (
	Ready    Readiness = "Ready"
	NotReady Readiness = "NotReady"
)

// Types of conditions.
const (
	// ConditionReady reports whether the domain is Ready, and if not what it waits for.
	ConditionReady = "Ready"
	// ConditionProgressing reports whether the domain is still coming into being, being repaired or being deleted, and what it waits for.
	ConditionProgressing = "Progressing"
	// ConditionDegraded reports whether something that worked, or should, does not: a node that was ready and is not, a node that is gone,
	// IMEX daemons that are not connected with each other, a name that is taken.
	ConditionDegraded = "Degraded"
	// ConditionDaemonsCurrent reports whether every IMEX daemon's pod was made as the controller makes them now, and if not which were made
	// before.
	ConditionDaemonsCurrent = "DaemonsCurrent"
	// ConditionCertificatesRenewable reports whether the controller can still issue certificates of the authority that the domain's IMEX
	// daemons have. It is written when that is not so, and stays.
	ConditionCertificatesRenewable = "CertificatesRenewable"
)

// ComputeDomainStatus reports a domain's state.
type ComputeDomainStatus struct {
	// Status sums up: Ready once NumNodes nodes are ready.
	//
	// +kubebuilder:default=NotReady
	// +optional
	Status Readiness `json:"status,omitempty"`

	// Nodes are the domain's nodes, from when their IMEX daemon has an address until they leave the domain.
	//
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []ComputeDomainNode `json:"nodes,omitempty"`

	// Cliques are the NVLink cliques that the domain's nodes are in, or were.
	//
	// +listType=map
	// +listMapKey=id
	// +optional
	Cliques []ComputeDomainClique `json:"cliques,omitempty"`

	// Conditions say why.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// IMEX is whose IMEX daemons serve the domain, decided when the controller first saw it: Domain (its own), Clique (those that the
	// controller runs on every node of the clique as long as the node does) or Host (those that the nodes run themselves).
	//
	// +kubebuilder:validation:Enum=Domain;Clique;Host
	// +optional
	IMEX IMEXMode `json:"imex,omitempty"`

	// Channels are the IMEX channels of a clique that domains hold. Only the ComputeDomain that stands for a whole clique has them.
	//
	// +listType=map
	// +listMapKey=domainID
	// +optional
	Channels []ComputeDomainChannel `json:"channels,omitempty"`

	// Summary is for people: kubectl get prints it.
	//
	// +optional
	Summary ComputeDomainSummary `json:"summary,omitempty"`

	// ObservedGeneration is the generation of the spec that the status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// ComputeDomainClique is the agreement of the IMEX daemons of one clique of a domain.
type ComputeDomainClique struct {
	// ID is "<ClusterUUID>.<CliqueID>".
	ID string `json:"id"`
	// Slots is how many nodes each daemon of the clique has in its list, the places of nodes to come included. Daemons whose lists
	// differ refuse each other, and a daemon reads its list only when it starts, so the number grows if it must and never shrinks.
	//
	// +kubebuilder:validation:Minimum=0
	Slots int `json:"slots"`
	// Channel is the IMEX channel that the domain holds in this clique, the same on all its nodes there. It is absent for a domain with
	// IMEX daemons of its own, which uses channel 0, and for one that has allocationMode All.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Channel *int `json:"channel,omitempty"`
}

// IMEXMode is whose IMEX daemons serve a domain.
type IMEXMode string

// The modes.
const (
	// IMEXDomain: the domain has daemons of its own, which come and go with it.
	IMEXDomain IMEXMode = "Domain"
	// IMEXClique: the daemons of the clique serve every domain, each by a channel of its own.
	IMEXClique IMEXMode = "Clique"
	// IMEXHost: as Clique, but the daemons are the service nvidia-imex of each node, which somebody else starts and configures.
	IMEXHost IMEXMode = "Host"
)

// IMEXModes are the modes there are.
func IMEXModes() []IMEXMode { return []IMEXMode{IMEXDomain, IMEXClique, IMEXHost} }

// Shared reports whether the daemons of a clique serve several domains, each by a channel.
func (m IMEXMode) Shared() bool { return m == IMEXClique || m == IMEXHost }

// ComputeDomainChannel is a channel of a clique that a domain holds, from when its first node joins until the last has given it back.
type ComputeDomainChannel struct {
	// Number of the channel, from 0; that of a domain with all channels is 0.
	//
	// +kubebuilder:validation:Minimum=0
	Number int `json:"number"`
	// All is whether the domain holds every channel of the clique.
	//
	// +optional
	All bool `json:"all,omitempty"`
	// DomainID is the UID of the ComputeDomain that holds the channel; Namespace and Name are where that ComputeDomain is, or was.
	DomainID  string `json:"domainID"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// ComputeDomainSummary is the status in a few words.
type ComputeDomainSummary struct {
	// Ready is how many nodes are ready of those that are needed, such as 17/18.
	//
	// +optional
	Ready string `json:"ready,omitempty"`
	// Clique is the NVLink clique of the domain's nodes, or how many there are.
	//
	// +optional
	Clique string `json:"clique,omitempty"`
	// Channel is the number of the domain's IMEX channel, or All.
	//
	// +optional
	Channel string `json:"channel,omitempty"`
	// Why is the first cause of what is not as it should be; empty where nothing is wrong. Causes come in this order: a problem of the
	// domain, a node that was ready, a node that is starting, nodes that have not joined.
	//
	// +optional
	Why string `json:"why,omitempty"`
}

// ComputeDomainNode is a node of a domain.
type ComputeDomainNode struct {
	// Name of the Node object.
	Name string `json:"name"`
	// IPAddress at which the node's IMEX daemon is reached by its peers.
	IPAddress string `json:"ipAddress"`
	// CliqueID is "<ClusterUUID>.<CliqueID>", empty for a node without NVLink fabric.
	CliqueID string `json:"cliqueID"`
	// Index is the node's number among those of its clique in this domain, from 0. It stays while the node stays.
	//
	// +kubebuilder:validation:Minimum=0
	Index int `json:"index"`
	// Status reports whether the node's IMEX daemon is ready.
	//
	// +kubebuilder:default=NotReady
	// +optional
	Status Readiness `json:"status,omitempty"`
	// State distinguishes a NotReady node that is Starting from one that is Interrupted: it was Ready before. Programs that ask
	// whether a node is ready read Status.
	//
	// +kubebuilder:validation:Enum=Starting;Ready;Interrupted
	// +optional
	State NodeState `json:"state,omitempty"`
	// Since is when the controller saw State change last.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Why is the thing that a node that is not Ready waits for.
	//
	// +optional
	Why string `json:"why,omitempty"`
	// Disconnected are the nodes of its clique in this domain with which the node's IMEX daemon is not connected, though both are READY:
	// their pods cannot use each other's memory. Of more than 32 the first by name are here. It is absent where all are connected, and
	// where it is not known.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	Disconnected []ComputeDomainPeer `json:"disconnected,omitempty"`
}

// MaxDisconnected is how many nodes ComputeDomainNode.Disconnected has at most.
const MaxDisconnected = 32

// ComputeDomainPeer is a node that another is not connected with.
type ComputeDomainPeer struct {
	// Name of the Node object.
	Name string `json:"name"`
	// State is the connection's, in the word of nvidia-imex-ctl -N -j: NEVER_CONNECTED, RECOVERING (it was lost), DISCONNECTED (lost for
	// long), VERSION_MISMATCH, NODE_MAP_MISMATCH (different lists of nodes) or another.
	State string `json:"state"`
	// Since is when the controller saw it first.
	Since metav1.Time `json:"since"`
}

// NodeState is a node's state in a domain.
type NodeState string

// The states of a node in a domain.
const (
	// NodeStarting: the node has joined, and its IMEX daemon has not been READY since.
	NodeStarting NodeState = "Starting"
	// NodeReady: its IMEX daemon is READY, or it needs none.
	NodeReady NodeState = "Ready"
	// NodeInterrupted: it was Ready and is not. The memory that its pods imported may be gone: an Event of each pod says so.
	NodeInterrupted NodeState = "Interrupted"
)

// ComputeDomainList is a list of ComputeDomains.
//
// +kubebuilder:object:root=true
type ComputeDomainList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ComputeDomain `json:"items"`
}
