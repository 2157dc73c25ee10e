package feed

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// rejectedFor is how long the API server must go on rejecting credentials before a wait ends. A credential plugin's token that expired is
// renewed for the
// request after the one that was rejected, and an API server that has just started may reject tokens until it has reached who issues them.
const rejectedFor = 30 * time.Second

// Rejections tells credentials that are rejected for a moment from those that are no good. The zero value has seen none.
type Rejections struct{ since time.Time }

// Last takes the outcome of a request, which may be nil, and tells whether the credentials have been rejected (401) in every one for so
// long that waiting is
// in vain.
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
