// Package findings is the table of findings of `gpufabric doctor`: for each a stable code, its link of the chain, and the remedy.
// Every code has an entry of the same name in docs/troubleshooting.md.
package findings

import (
	"slices"
	"strings"
)

// Stage is a link of the chain from the machine to a running workload. A broken link delays all later ones, so the first cause is
// the finding of the lowest Stage.
type Stage int

// The links, in order.
const (
	// Healthy is no broken link: a reason that means that all is well.
	Healthy Stage = iota
	// Cluster: the API server, the kubelets and their versions.
	Cluster
	// Install: the objects that the chart installs, and the causes for which its pods do not run.
	Install
	// Node: the machine as Kubernetes sees it.
	Node
	// Driver: the NVIDIA driver and the hardware behind it.
	Driver
	// Plugin: gpufabric's program on the node.
	Plugin
	// Slice: the devices that are published, and their taints.
	Slice
	// Scheduler: the choice of a node and of devices.
	Scheduler
	// Claim: the claim's own content.
	Claim
	// Prepare: the node makes the claim's devices ready.
	Prepare
	// Container: CDI and the container itself.
	Container
	// Peers: the IMEX daemons of other nodes, and the ends of RDMA links.
	Peers
)

// String is the stage's name in answers and in JSON.
func (s Stage) String() string {
	return [...]string{"healthy", "cluster", "install", "node", "driver", "plugin", "slice", "scheduler", "claim", "prepare", "container",
		"peers"}[s]
}

// exitBase is added to the number of a Stage to make the program's exit status: 11 is cluster, 21 is peers.
const exitBase = 10

// ExitStatus is the exit status of the program whose first cause is at this stage.
func (s Stage) ExitStatus() int {
	if s == Healthy {
		return 0
	}
	return exitBase + int(s)
}

// Finding is a row of the table.
type Finding struct {
	// Code is stable: programs may depend on it.
	Code  string
	Stage Stage
	// Do is the remedy, for a person.
	Do string
}

// page is where the entries are.
const page = "docs/troubleshooting.md"

// Entry is where the finding is described in full, from the root of the repository.
func (f Finding) Entry() string { return page + "#" + Anchor(f.Code) }

// Anchor is the anchor of a heading in Markdown.
func Anchor(heading string) string {
	var out strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			out.WriteRune(r)
		case r == ' ':
			out.WriteRune('-')
		}
	}
	return out.String()
}

// Find returns the row of a code.
func Find(code string) (Finding, bool) {
	for _, part := range [][]Finding{surroundings(), nodes(), claims(), fabric(), well()} {
		for _, f := range part {
			if f.Code == code {
				return f, true
			}
		}
	}
	return Finding{}, false
}

// Table returns all rows.
func Table() []Finding {
	var out []Finding
	for _, part := range [][]Finding{surroundings(), nodes(), claims(), fabric(), well()} {
		out = append(out, part...)
	}
	return out
}

// Bearable reports whether pods run in spite of a finding: what it takes away is a part of a node's devices or of what is seen of them,
// never what a pod that waits needs by itself.
func Bearable(code string) bool {
	return slices.Contains([]string{"DriverIncomplete", "DriverVersionsAcrossNodes", "GPUHealthNotFollowed", "GPUNotReadWhole", "GPUTrouble",
		"GPUFaultsUnreadable", "GPUFormsUnreadable", "ClaimDataUnreadable", "ClaimStateUnreadable", "StateUnreadable", "DrainNotServed",
		"HandoverUnreadable", "HandoverUnknownGPU", "ComputeModeNotReset", "TimeSliceNotReset", "MPSNotEnded", "ShareNotCounted",
		"MIGDeviceNotOffered", "MIGInstanceNotRemoved", "MIGInstancesFound", "MIGInstancesKept", "ContainerRuntimeNotWatched",
		"ConfigWithoutEffect", "DeviceReleaseForced"}, code)
}
