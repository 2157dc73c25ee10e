package fabric

// Picture is the fabric as people and programs see it: racks of nodes, and objects across racks. It contains every device of a claim
// exactly once, as a Hold.
type Picture struct {
	Totals  Totals        `json:"totals"`
	Racks   []Rack        `json:"racks"`
	Domains []DomainState `json:"domains"`
	Pools   []PoolState   `json:"pools"`
	Queue   []WaitingPod  `json:"queue"`
	Layouts []LayoutState `json:"layouts,omitempty"`
	Strays  []Allocation  `json:"strays,omitempty"` // devices of claims whose pool no node publishes
	Missing []Missing     `json:"missing,omitempty"`
}

// Totals count the whole fabric.
type Totals struct {
	Racks   int `json:"racks"`
	Nodes   int `json:"nodes"`
	GPUs    int `json:"gpus"`
	Free    int `json:"freeGPUs"`
	Partly  int `json:"partlyHeldGPUs"`
	Held    int `json:"heldGPUs"`
	Tainted int `json:"taintedGPUs"`
	Broken  int `json:"brokenGPUs"`
	Ports   int `json:"ports"`
	Down    int `json:"downPorts"`
	Domains int `json:"domains"`
	Forming int `json:"formingDomains"`
	Waiting int `json:"waitingPods"`
}

// RackKind is the way in which a rack was recognised.
type RackKind string

// The kinds of racks.
const (
	// ByNVLink: the nodes of one NVLink fabric, by its ClusterUUID.
	ByNVLink RackKind = "nvlink"
	// ByLabel: the nodes without NVLink fabric that one of cliques.RackLabels gives the same value.
	ByLabel RackKind = "label"
	// NoRack: nodes whose place is unknown.
	NoRack RackKind = "none"
)

// Rack is nodes that belong together.
type Rack struct {
	ID      string      `json:"id"` // ClusterUUID or the label's value; empty: NoRack
	Kind    RackKind    `json:"kind"`
	Cliques []string    `json:"cliques,omitempty"`
	Nodes   []NodeState `json:"nodes"`
}

// State is the availability of a GPU or a port now.
type State string

// The states, the best first.
const (
	Free    State = "free"    // no claim has a part of it
	Partly  State = "partly"  // claims have some of it, and there is more
	Held    State = "held"    // claims have all of it
	Tainted State = "tainted" // it is kept from new claims: drained, or handed to a device plugin
	Broken  State = "broken"  // the driver reports a fault that keeps new claims away
)

// NodeState is a node with its devices.
type NodeState struct {
	Name   string `json:"name"`
	Clique string `json:"clique,omitempty"`
	// Domains are the ComputeDomains that the node is in, or is joining: namespace/name.
	Domains  []string `json:"domains,omitempty"`
	Ready    bool     `json:"ready"`
	Cordoned bool     `json:"cordoned,omitempty"`
	// Notes are problems of the node as a whole.
	Notes []string    `json:"notes,omitempty"`
	GPUs  []GPUState  `json:"gpus,omitempty"`
	Ports []PortState `json:"ports,omitempty"`
	// IMEX are the channels and daemons of compute domains that claims have.
	IMEX []Allocation `json:"imex,omitempty"`
	// Gone are devices of claims that are no longer published.
	Gone []Allocation `json:"gone,omitempty"`
	// Counted are the extended resources of device plugins, which do not report which device a pod has.
	Counted []Counted `json:"counted,omitempty"`
}

// Counted is an extended resource of a node.
type Counted struct {
	Resource    string   `json:"resource"`
	Allocatable int64    `json:"allocatable"`
	Requested   int64    `json:"requested"`
	Pods        []string `json:"pods,omitempty"`
}

// GPUState is a GPU and the holders of its parts.
type GPUState struct {
	Name    string `json:"name"` // gpu-0
	UUID    string `json:"uuid,omitempty"`
	Product string `json:"product,omitempty"`
	Index   int    `json:"index"` // NVML's; -1: not published
	// Memory is in bytes; 0: not published (a GPU that is offered in MIG placements alone).
	Memory int64 `json:"memory,omitempty"`
	// MemorySlices is its number of MIG memory slices; 0: it is not offered in MIG placements that exclude each other.
	MemorySlices int `json:"memorySlices,omitempty"`
	// Shares is how many counted shares it has; 0: they are not counted.
	Shares int64 `json:"shares,omitempty"`
	// Offers are the forms that claims can have it in.
	Offers []string `json:"offers"`
	Clique string   `json:"clique,omitempty"` // where it differs from its node's
	// NVLink identifies the GPUs that it reaches over NVLink: they have the same value. The ends of single links are not published.
	NVLink string       `json:"nvlink,omitempty"`
	PCI    string       `json:"pci,omitempty"`
	Switch string       `json:"switch,omitempty"`
	Root   string       `json:"root,omitempty"`
	NUMA   int          `json:"numa"` // -1: unknown
	State  State        `json:"state"`
	Taints []Taint      `json:"taints,omitempty"`
	Holds  []Allocation `json:"holds,omitempty"`
}

// PortState is an RDMA port and the holders of its parts.
type PortState struct {
	Name      string       `json:"name"`
	Device    string       `json:"device,omitempty"` // mlx5_0
	Port      int          `json:"port,omitempty"`
	Interface string       `json:"interface,omitempty"`
	LinkLayer string       `json:"linkLayer,omitempty"`
	RateGbps  int          `json:"rateGbps,omitempty"`
	Rail      int          `json:"rail"` // -1: none
	PCI       string       `json:"pci,omitempty"`
	Switch    string       `json:"switch,omitempty"`
	Root      string       `json:"root,omitempty"`
	NUMA      int          `json:"numa"` // -1: unknown
	Pool      string       `json:"pool,omitempty"`
	Slots     int64        `json:"slots,omitempty"`
	State     State        `json:"state"`
	Taints    []Taint      `json:"taints,omitempty"`
	Holds     []Allocation `json:"holds,omitempty"`
}

// Allocation is a device of a claim, or a part of one.
type Allocation struct {
	Claim   string   `json:"claim"` // namespace/name
	Request string   `json:"request"`
	Device  string   `json:"device"`
	Pods    []string `json:"pods,omitempty"` // names, in the claim's namespace
	Driver  string   `json:"driver,omitempty"`
	Pool    string   `json:"pool,omitempty"` // where nothing around the entry shows it
	ShareID string   `json:"shareID,omitempty"`
	// Form is whole, share, MIG and a profile, or port.
	Form string `json:"form,omitempty"`
	// Memory (bytes), Cores (percent), Shares, Slots and Bandwidth (Gb/s) are its consumption of the device; 0 if not counted.
	Memory    int64 `json:"memory,omitempty"`
	Cores     int64 `json:"cores,omitempty"`
	Shares    int64 `json:"shares,omitempty"`
	Slots     int64 `json:"slots,omitempty"`
	Bandwidth int64 `json:"bandwidth,omitempty"`
	// Start and Size are a MIG instance's memory slices.
	Start int `json:"start,omitempty"`
	Size  int `json:"size,omitempty"`
	// Domain is the ComputeDomain of a channel: namespace/name.
	Domain string `json:"domain,omitempty"`
	// Admin: the claim observes the device, and does not keep it from others.
	Admin bool `json:"admin,omitempty"`
}

// DomainState is a ComputeDomain and its progress.
type DomainState struct {
	Name     string   `json:"name"` // namespace/name
	Ready    bool     `json:"ready"`
	Deleting bool     `json:"deleting,omitempty"`
	Wanted   int      `json:"wanted"`
	Up       int      `json:"up"` // members whose IMEX daemon is ready
	Reason   string   `json:"reason,omitempty"`
	Why      string   `json:"why,omitempty"`
	Created  int64    `json:"created,omitempty"` // Unix seconds
	Members  []Member `json:"members,omitempty"`
	// Joining are nodes with the domain's label that are no members yet.
	Joining []string `json:"joining,omitempty"`
}

// PoolState is an RDMAPool.
type PoolState struct {
	Name     string `json:"name"`
	Resource string `json:"resource,omitempty"`
	Nodes    int    `json:"nodes"`
	Devices  int    `json:"devices"`
	Healthy  int    `json:"healthy"`
	Ready    bool   `json:"ready"`
	Why      string `json:"why,omitempty"`
}

// LayoutState is a node whose GPUs get their MIG layouts by demand.
type LayoutState struct {
	Node string `json:"node"`
	// Decision is the controller's latest about the node, with its reason.
	Decision string `json:"decision,omitempty"`
	// Cuts are the changes of GPUs in progress.
	Cuts []CutState `json:"cuts,omitempty"`
}

// CutState is a change of a GPU's MIG instances in progress.
type CutState struct {
	GPU   string `json:"gpu"`   // gpu-0
	To    string `json:"to"`    // its layout afterwards
	Since int64  `json:"since"` // Unix seconds
	Why   string `json:"why,omitempty"`
}

// WaitingPod is a pod with claims or extended resources that does not run yet.
type WaitingPod struct {
	Pod   string `json:"pod"` // namespace/name
	Node  string `json:"node,omitempty"`
	Since int64  `json:"since"` // Unix seconds: when its present wait began
	// Cause is shared by all pods with the same cause. Says is the pod's own status.
	Cause string `json:"cause"`
	Says  string `json:"says,omitempty"`
}
