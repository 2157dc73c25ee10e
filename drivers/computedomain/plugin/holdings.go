package plugin

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// holdings are the claims of this node and their domains. The zero value has none.
type holdings struct {
	mu      sync.Mutex
	byClaim map[types.UID]held
	// namespaces are those of the domains whose channel is held.
	namespaces map[types.UID]string
	// unsure is set where records of claims could not be read: they may hold any domain.
	unsure  bool
	changed chan struct{} // closed and replaced at each change
}

// hold records what a claim is for; namespace is the claim's.
func (h *holdings) hold(claim types.UID, namespace string, data held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byClaim == nil {
		h.byClaim, h.namespaces = map[types.UID]held{}, map[types.UID]string{}
	}
	if data.Channel != "" {
		h.namespaces[data.Channel] = namespace
	}
	if h.byClaim[claim] != data {
		h.byClaim[claim] = data
		h.tell()
	}
}

// release removes a claim, and calls last for each domain without another claim. nvidia-imex's state must outlive its own claim
// while a job of the domain runs here: the next daemon needs it. Where last fails the claim stays.
func (h *holdings) release(claim types.UID, data held, last func(domain types.UID) error) error {
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
	if _, known := h.byClaim[claim]; known {
		delete(h.byClaim, claim)
		if !h.others(claim, data.Channel) {
			delete(h.namespaces, data.Channel)
		}
		h.tell()
	}
	return nil
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
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	for _, data := range h.byClaim {
		if data.Channel != "" && !data.Shared {
			return data.Channel, true, h.changed
		}
	}
	return "", !h.unsure, h.changed
}

// members returns the domains with a shared channel that a claim here has, whether these are all, and a channel that is closed when they
// may have changed.
func (h *holdings) members() (domains []types.UID, sure bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	for _, data := range h.byClaim {
		if data.Shared {
			domains = append(domains, data.Channel)
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains), !h.unsure, h.changed
}

// servers returns the domains whose daemons serve the channels of claims here, and a channel that is closed when they may have changed.
func (h *holdings) servers() (domains []types.UID, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	for _, data := range h.byClaim {
		if server := data.server(); server != "" {
			domains = append(domains, server)
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains), h.changed
}

// only says whether a claim's domain has no other claim.
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

// daemonOf is the domain whose daemon a claim is for; empty where it is for none, or where that is unknown.
func (h *holdings) daemonOf(claim types.UID) types.UID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byClaim[claim].Daemon
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

func (h *holdings) tell() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// domains are the domains that a claim is for.
func (d held) domains() []types.UID {
	var domains []types.UID
	for _, domain := range []types.UID{d.Channel, d.Daemon, d.Server} {
		if domain != "" {
			domains = append(domains, domain)
		}
	}
	return domains
}
