// Package occupancy decides when the devices of a claim are free: when no container on the node can use them any more.
//
// Neither the API server nor the kubelet proves that. A pod that was deleted by force, and its claim, are gone from the API while its
// containers have their grace period, or cannot be killed. The kubelet of 1.34 to 1.37 unprepares such a claim within a minute,
// because its reconcile loop (pkg/kubelet/cm/dra/manager.go) does not count pods that were deleted by force and still terminate.
// Only the kernel has the processes that are left: the cgroup of each pod that may use the claim counts them.
package occupancy

import "time"

// Patience is how long a claim that is gone from the API keeps its devices where the node's cgroups cannot show its pods. The kubelet's
// reconcile loop, which unprepares such a claim, runs every 60 s.
const Patience = 90 * time.Second

// State is a state of a claim's devices.
type State string

// The states. A claim without a record is Free.
const (
	// Held devices are their claim's.
	Held State = "Held"
	// Releasing devices are no longer to be their claim's, but a container may still use them. Their preparation is not undone, and no
	// other claim gets them.
	Releasing State = "Releasing"
	// Free devices can be undone and given to the next claim.
	Free State = "Free"
)

// Facts are the observations about a claim's devices.
type Facts struct {
	// Requested: the kubelet has called unprepare for the claim.
	Requested bool
	// Gone: the API no longer has the claim with these devices. GoneFor is the time since this was found.
	Gone    bool
	GoneFor time.Duration
	// Users: a pod that may use the claim has processes.
	Users bool
	// Known: every pod that may use the claim was found in the node's cgroups, so Users is the truth.
	Known bool
	// Rebooted: the claim was prepared in an earlier boot of the node.
	Rebooted bool
	// Forced: an administrator frees the devices in spite of their users.
	Forced bool
}

// Decide returns the state of the devices. The rows are tried in order:
//
//	an administrator forces it                                   Free
//	neither the kubelet nor the API releases the claim           Held
//	the node was rebooted: no container of then is left          Free
//	a pod of the claim has processes                             Releasing
//	the kubelet unprepared: containers have ended                Free
//	the claim is gone, and its pods have no process              Free
//	the claim is gone for Patience, its pods cannot be seen      Free
//	else                                                         Releasing
func Decide(f Facts) State {
	switch {
	case f.Forced:
		return Free
	case !f.Requested && !f.Gone:
		return Held
	case f.Rebooted:
		return Free
	case f.Users:
		return Releasing
	case f.Requested, f.Known, f.GoneFor >= Patience:
		return Free
	}
	return Releasing
}
