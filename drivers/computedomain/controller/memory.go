package controller

import (
	"crypto/sha256"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// lag is how long a created object may be missing from the cache before it counts as deleted.
const lag = 10 * time.Second

// memory has the controller's own writes before its caches have them. Without it the reconcile that a write causes would often work
// on the state from before, and write again. It contains only facts that are in the cluster too: losing it is harmless.
type memory struct {
	mu      sync.Mutex
	domains map[types.UID]*remembered
}

type remembered struct {
	newest      *v1beta1.ComputeDomain
	lost        *v1beta1.ComputeDomainStatus // as last written, where the API server drops fields of it
	statusWrite time.Time
	deleting    time.Time            // when it was first seen that the domain is being deleted
	created     map[string]time.Time // objects that the cache may lack, by kind and name
	acted       map[action]time.Time // when an action was last taken
	refused     [sha256.Size]byte    // of the owner that was last refused
}

// action is one that a domain's reconciliations take rarely.
type action string

const (
	reportDeletedUnder  action = "DeletedUnderPods"
	lookForCertificates action = "certificates"
	reportDropped       action = reasonDropped
	reportDisconnected  action = reasonDisconnected
	seeDeletion         action = "deletion"
	seePod              action = "pod " // and its UID
)

func (m *memory) of(uid types.UID) *remembered {
	if m.domains == nil {
		m.domains = map[types.UID]*remembered{}
	}
	if m.domains[uid] == nil {
		m.domains[uid] = &remembered{created: map[string]time.Time{}, acted: map[action]time.Time{}}
	}
	return m.domains[uid]
}

// newest returns the newer of a cached domain and the one that was last written.
func (m *memory) newest(cached *v1beta1.ComputeDomain) *v1beta1.ComputeDomain {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.of(cached.UID)
	if known.newest != nil {
		if order, err := resourceversion.CompareResourceVersion(known.newest.ResourceVersion, cached.ResourceVersion); err == nil && order > 0 {
			return known.newest.DeepCopy()
		}
		known.newest = nil
	}
	return cached
}

// wrote stores the answer to a write.
func (m *memory) wrote(domain *v1beta1.ComputeDomain) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(domain.UID).newest = domain.DeepCopy()
}

// lose stores a status of which the API server drops fields; nil: it keeps all.
func (m *memory) lose(uid types.UID, status *v1beta1.ComputeDomainStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(uid).lost = status
}

// lost returns a copy of that status, or nil.
func (m *memory) lost(uid types.UID) *v1beta1.ComputeDomainStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(uid).lost.DeepCopy()
}

// statusWritten stores the time at which a domain's status was written.
func (m *memory) statusWritten(uid types.UID, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(uid).statusWrite = at
}

// sinceStatus is how long ago that was; very long where it never was.
func (m *memory) sinceStatus(uid types.UID, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(m.of(uid).statusWrite)
}

// deletingSince returns the time at which the controller first saw a domain's deletion: now, if it had not before.
func (m *memory) deletingSince(uid types.UID, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.of(uid)
	if known.deleting.IsZero() {
		known.deleting = now
	}
	return known.deleting
}

// waited returns how long a controller has waited for something that began at a time of the API server's clock. It is at least since the
// controller first saw it: its own clock may be behind, and a wait of a minute would last as long as that.
func (m *memory) waited(uid types.UID, what action, began, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.of(uid)
	if _, seen := known.acted[what]; !seen {
		known.acted[what] = now
	}
	return max(now.Sub(began), now.Sub(known.acted[what]))
}

// made records that an object was created.
func (m *memory) made(uid types.UID, object string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(uid).created[object] = at
}

// recently reports whether an object was created so lately that the cache may not have it yet.
func (m *memory) recently(uid types.UID, object string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.of(uid).created[object]
	return ok && now.Sub(at) < lag
}

// seen forgets a creation once the cache has it, so that a deletion right after is noticed.
func (m *memory) seen(uid types.UID, object string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of(uid).created, object)
}

// once reports whether an action is the first of its kind for a domain, and records it.
func (m *memory) once(uid types.UID, one action) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, done := m.of(uid).acted[one]
	m.of(uid).acted[one] = time.Time{}
	return !done
}

// refuses reports whether an owner is another one than the domain's last that was refused. It does not store text of the domain's
// author, whose length has no limit.
func (m *memory) refuses(uid types.UID, owner string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, now := m.of(uid).refused, sha256.Sum256([]byte(owner))
	m.of(uid).refused = now
	return before != now
}

// atMostEach reports whether an action was last taken for a domain longer ago than pause, and stores this time.
func (m *memory) atMostEach(uid types.UID, one action, pause time.Duration, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, done := m.of(uid).acted[one]
	if done && now.Sub(last) < pause {
		return false
	}
	m.of(uid).acted[one] = now
	return true
}

// forget drops a domain that is gone.
func (m *memory) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.domains, uid)
}
