// Package fabric is the picture of a cluster's GPU fabric: racks, cliques, nodes, GPUs, ports and domains, with holders, free parts and
// faults.
//
// The picture is made from facts, the relevant parts of the API server's objects (a ResourceSlice of 128 devices takes 400 KB, its
// facts a few). A reader of the cluster makes facts from each object (OfSlice, OfClaim and so on) and calls Draw with all of them.
// This package does not call an API server.
package fabric

import (
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// Facts are the input of a picture.
type Facts struct {
	Slices  []*Slice
	Claims  []*Claim
	Pods    []*Pod
	Nodes   []*Node
	Domains []*Domain
	Pools   []*Pool
	Layouts []*Layout
	// Missing lists the kinds of objects that could not be read, with the reasons.
	Missing []Missing
}

// Missing are objects that the caller cannot read.
type Missing struct {
	// Resource is as `kubectl get` takes it: resourceslices.resource.k8s.io.
	Resource string `json:"resource"`
	// Why is the API server's answer, and the remedy.
	Why string `json:"why"`
}

// Slice is a ResourceSlice of one of the fabric's drivers.
type Slice struct {
	metav1.ObjectMeta
	Driver, Pool, NodeName string
	Generation             int64
	// Count is how many slices the pool has in this generation.
	Count      int64
	GPUs       []GPUFacts
	Placements []Placement
	Ports      []PortFacts
	// IMEX are the names of the channels and daemons of compute domains.
	IMEX []NamedDevice
	// MemorySlices is how many memory slices a GPU has, by the name of its counter set.
	MemorySlices map[string]int
}

// GPUFacts are the data of a GPU in one of its forms. A GPU that is only offered in MIG placements is described by the first of them.
type GPUFacts struct {
	GPU    string // gpu-0
	Device string // the device's name: gpu-0, gpu-0-shared; empty: from a placement
	Form   string // whole, shareable, 4 shares, shares, shares of a VGPUProfile

	UUID, Product     string
	Index             int // NVML's; -1: unknown
	Memory            int64
	Cores, Shares     int64 // the capacity for claims; 0: not counted
	Multiple          bool
	Clique, NVLink    string
	Address           string // PCI
	Switch, Root      string
	NUMA              int // -1: unknown
	Driver, Compute   string
	Taints            []Taint
	ExclusiveByMemory bool // it is shared by its memory, so a claim with all of it has it whole
}

// Placement is a MIG placement that is offered, or that an administrator made.
type Placement struct {
	GPU, Device, Profile string
	Memory               int64
	// Start and Size are its memory slices; Size is 0 where the driver does not publish counters for them.
	Start, Size int
	Taints      []Taint
}

// PortFacts are a published RDMA port.
type PortFacts struct {
	Device               string
	RDMADevice           string
	Number               int
	Interface, LinkLayer string
	RateGbps, MTU        int
	Rail                 int // -1: none
	NUMA                 int // -1: unknown
	Address              string
	Switch, Root         string
	Pool                 string
	Firmware, GPUDirect  string
	Slots                int64
	Multiple             bool
	Taints               []Taint
}

// NamedDevice is a device of which only its name and its taints matter.
type NamedDevice struct {
	Device string
	Clique string
	Taints []Taint
}

// Taint is a device taint.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Claim is a ResourceClaim.
type Claim struct {
	metav1.ObjectMeta
	Created time.Time
	// Results are the devices of the fabric's drivers that are allocated to it.
	Results   []Result
	Allocated bool
	// Pods are the names of the pods it is reserved for.
	Pods []string
	// Domain is the name of the ComputeDomain that a channel of the claim belongs to, if the claim has it.
	Domain string
}

// Result is one device of a claim.
type Result struct {
	Request, Driver, Pool, Device string
	ShareID                       string
	Admin                         bool
	// Memory (bytes), Cores (percent), Shares, Slots and Bandwidth (Gb/s) are its consumption of the device; 0 if not
	// counted.
	Memory, Cores, Shares, Slots, Bandwidth int64
}

// Pod is a pod that has claims, or requests extended resources.
type Pod struct {
	metav1.ObjectMeta
	Created  time.Time
	NodeName string
	Phase    string
	// Waits is the reason of a pending pod's wait, in the words of its status; Since is when that began.
	Waits    string
	Since    time.Time
	Claims   []string
	Extended map[string]int64 // requested, by resource
	Ended    bool
}

// Node is a Node.
type Node struct {
	metav1.ObjectMeta
	Clique, Domain string // by label
	RackLabel      string // the value of the first label that names racks
	Ready          bool
	Why            string // of a node that is not ready
	Cordoned       bool
	// Extended are the allocatable extended resources for devices.
	Extended map[string]int64
}

// Domain is a ComputeDomain.
type Domain struct {
	metav1.ObjectMeta
	Created  time.Time
	Wanted   int
	Ready    bool
	Why      string
	Reason   string
	Members  []Member
	Deleting bool
}

// Member is a node in a domain.
type Member struct {
	Node   string `json:"node"`
	Clique string `json:"clique,omitempty"`
	Index  int    `json:"index"`
	Ready  bool   `json:"ready"`
}

// Pool is an RDMAPool.
type Pool struct {
	metav1.ObjectMeta
	Resource       string
	Devices        int
	Healthy, Nodes int
	Ready          bool
	Why            string
}

// Layout is a MIGLayout.
type Layout struct {
	metav1.ObjectMeta
	Node     string // of a layout by demand; empty: it is another one
	Decision string // the controller's latest
	Cuts     []v1alpha1.MIGCut
}

// word keeps one copy of a text that many facts repeat: device names, products and PCI addresses are the same on every node.
func word(text string) string {
	if text == "" {
		return ""
	}
	return unique.Make(text).Value()
}

// named is the part of an object's metadata that facts keep.
func named(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: word(o.GetNamespace()), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}
