package plugin

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/computedomain/mode"
)

// holdings are the claims of this node and their domains. The zero value has none.
type holdings struct {
	mu      sync.Mutex
	byClaim map[types.UID]claimData
	// namespaces are the namespaces of the domains whose channel is held.
	namespaces map[types.UID]string
	// unsure is set where records of claims could not be read: they may be for any domain.
	unsure  bool
	changed chan struct{} // closed and replaced at each change
}

// admit records the domain of a claim for a channel, unless claims of another domain keep it off the node; then it returns that
// domain, and a channel that is closed when they may have ended. joined: the node is in an NVLink fabric. undo takes the record
// back.
//
// The scheduler keeps claims that exclude each other apart while the node's slice is right (preparer.sharing), but a slice may be older
// than the claims.
func (h *holdings) admit(claim types.UID, namespace string, data claimData,
	joined bool) (other types.UID, changed <-chan struct{}, undo func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, found := range h.byClaim {
		if uid == claim || found.Channel == "" || found.Channel == data.Channel || !mode.Excludes(found.Shared, data.Shared, joined) {
			continue
		}
		return found.Channel, h.watch(), nil
	}
	before, had := h.byClaim[claim]
	h.record(claim, namespace, data)
	return "", nil, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if had {
			h.record(claim, namespace, before)
			return
		}
		h.drop(claim)
	}
}

// sharing reports whether claims of the node have channels of domains with daemons of their own, and whether they have shared ones; and
// returns a channel that is closed when that may have changed.
func (h *holdings) sharing() (own, shared bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.byClaim {
		own = own || data.Channel != "" && !data.Shared
		shared = shared || data.Shared
	}
	return own, shared, h.watch()
}

// hold records the domain of a claim; namespace is the claim's.
func (h *holdings) hold(claim types.UID, namespace string, data claimData) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.record(claim, namespace, data)
}

// record is hold for a caller that has locked h.mu.
func (h *holdings) record(claim types.UID, namespace string, data claimData) {
	if h.byClaim == nil {
		h.byClaim, h.namespaces = map[types.UID]claimData{}, map[types.UID]string{}
	}
	if data.Channel != "" {
		h.namespaces[data.Channel] = namespace
	}
	if h.byClaim[claim] != data {
		h.byClaim[claim] = data
		h.notify()
	}
}

// release removes a claim, and calls last for each domain without another claim. nvidia-imex's state must outlive its own claim
// while a job of the domain runs here: the next daemon needs it. Where last fails the claim stays.
func (h *holdings) release(claim types.UID, data claimData, last func(domain types.UID) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, domain := range data.domains() {
		if h.others(claim, domain) {
			continue
		}
		if err := last(domain); err != nil {
			return err
		}
	}
	h.drop(claim)
	return nil
}

// drop forgets a claim. The caller has locked h.mu.
func (h *holdings) drop(claim types.UID) {
	data, known := h.byClaim[claim]
	if !known {
		return
	}
	delete(h.byClaim, claim)
	if !h.others(claim, data.Channel) {
		delete(h.namespaces, data.Channel)
	}
	h.notify()
}

func (h *holdings) others(claim, domain types.UID) bool {
	for other, data := range h.byClaim {
		if other != claim && (data.Channel == domain || data.Daemon == domain || data.Server == domain) {
			return true
		}
	}
	return false
}

// channel is the domain for which the node's channel is held, whether that is certain, and a channel that is closed when it may
// have changed.
func (h *holdings) channel() (domain types.UID, sure bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.byClaim {
		if data.Channel != "" && !data.Shared {
			return data.Channel, true, h.watch()
		}
	}
	return "", !h.unsure, h.watch()
}

// members returns the domains with a shared channel that a claim here has, whether these are all, and a channel that is closed when they
// may have changed.
func (h *holdings) members() (domains []types.UID, sure bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.byClaim {
		if data.Shared {
			domains = append(domains, data.Channel)
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains), !h.unsure, h.watch()
}

// servers returns the domains whose daemons serve the channels of claims here, and a channel that is closed when they may have changed.
func (h *holdings) servers() (domains []types.UID, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.byClaim {
		if server := data.server(); server != "" {
			domains = append(domains, server)
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains), h.watch()
}

// lastChannel reports whether no other claim has a channel of a domain.
func (h *holdings) lastChannel(claim, domain types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for other, data := range h.byClaim {
		if other != claim && data.Channel == domain {
			return false
		}
	}
	return true
}

// only reports whether a claim's domain has no other claim.
func (h *holdings) only(claim, domain types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.others(claim, domain)
}

// count is how many claims are for channels and for daemons.
func (h *holdings) count() (channels, daemons int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.byClaim {
		if data.Channel != "" {
			channels++
		}
		if data.Daemon != "" {
			daemons++
		}
	}
	return channels, daemons
}

// empty reports whether the node has no claim of a domain, as far as records could be read.
func (h *holdings) empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byClaim) == 0 && !h.unsure
}

// daemonOf is the domain whose daemon a claim is for; empty where it is for none, or where that is unknown.
func (h *holdings) daemonOf(claim types.UID) types.UID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byClaim[claim].Daemon
}

// own reports whether a claim has a channel of a domain with daemons of its own.
func (h *holdings) own(domain types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.byClaim {
		if data.Channel == domain && !data.Shared {
			return true
		}
	}
	return false
}

// namespaceOf is the namespace of a domain whose channel is held: that of the claim, which can only be for a domain of its own
// namespace.
func (h *holdings) namespaceOf(domain types.UID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.namespaces[domain]
}

// doubt records that there are unknown claims.
func (h *holdings) doubt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unsure = true
}

// watch returns a channel that is closed at the next change. The caller has locked h.mu.
func (h *holdings) watch() <-chan struct{} {
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

func (h *holdings) notify() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}
