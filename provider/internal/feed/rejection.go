package feed

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// rejectedFor is how long the API server must reject credentials before a wait ends. A credential plugin renews an expired token
// for the request after the rejected one, and an API server that has just started may reject tokens until it has reached their
// issuer.
const rejectedFor = 30 * time.Second

// Rejections distinguishes credentials that are rejected for a moment from invalid ones. The zero value has seen none.
type Rejections struct{ since time.Time }

// Last processes the outcome of a request, which may be nil. It reports whether the credentials have been rejected (401) in every
// request for so long that waiting is useless.
func (r *Rejections) Last(outcome error) bool {
	if !apierrors.IsUnauthorized(outcome) {
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return time.Since(r.since) >= rejectedFor
}
