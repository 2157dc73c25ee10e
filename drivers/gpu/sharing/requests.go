package sharing

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/keylock"
	"gpufabric.io/drivers/node/store"
)

// requests are the requests to a keeper:
//
//	PUT    /claims/UID?at=MOMENT          Start; with &resume Resume
//	DELETE /claims/UID?at=MOMENT          Stop
//	PUT    /claims?at=MOMENT [UID, ...]   Retain
//	GET    /healthz                       whether requests are answered
//
// Requests for one claim count in the order of their moments, in whatever order they arrive: an earlier request does not start a daemon
// for a claim that was released.
type requests struct {
	Keeper

	settings *store.Store[json.RawMessage]
	// locks make sure that only one request at a time changes a claim's settings and its daemon.
	locks keylock.Locks

	mu sync.Mutex
	// last is when each claim was last requested or released.
	last map[types.UID]Moment
}

// memory is the minimum time for which a claim's release is remembered: far longer than a request may take.
const memory = Moment(time.Hour)

func (r *requests) mux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /claims/{claim}", r.put)
	mux.HandleFunc("DELETE /claims/{claim}", r.delete)
	mux.HandleFunc("PUT /claims", r.retain)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) { r.MPS.states() })
	return mux
}

// latest records a request for a claim, and reports whether a later one has come before it.
func (r *requests) latest(claim types.UID, at Moment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at < r.last[claim] {
		return false
	}
	r.last[claim] = at
	maps.DeleteFunc(r.last, func(_ types.UID, last Moment) bool { return last < at-memory })
	return true
}

func (r *requests) put(w http.ResponseWriter, request *http.Request) {
	claim := types.UID(request.PathValue("claim"))
	var s Settings
	text, err := io.ReadAll(http.MaxBytesReader(w, request.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || !claimPattern.MatchString(string(claim)) {
		http.Error(w, fmt.Sprintf("claim %q: settings that cannot be read: %v", claim, err), http.StatusBadRequest)
		return
	}
	d, err := r.begin(request, claim, text, s)
	if err == nil && d == nil {
		http.Error(w, fmt.Sprintf("claim %s was given back, or asked for again, after this request was made", claim), http.StatusConflict)
		return
	}
	if err == nil {
		err = r.MPS.settle(request.Context(), claim, d)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// begin stores a claim's settings and starts to keep its daemon running. It returns nil where a later request for the claim has
// come.
func (r *requests) begin(request *http.Request, claim types.UID, text []byte, s Settings) (*daemon, error) {
	unlock, err := r.locks.Lock(request.Context(), string(claim))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if !r.latest(claim, parseMoment(request.URL.Query().Get("at"))) {
		return nil, nil
	}
	if err := r.settings.Put(string(claim), text); err != nil {
		return nil, err
	}
	return r.MPS.begin(request.Context(), claim, s, request.URL.Query().Has("resume"))
}

func (r *requests) delete(w http.ResponseWriter, request *http.Request) {
	claim := types.UID(request.PathValue("claim"))
	if !claimPattern.MatchString(string(claim)) {
		http.Error(w, fmt.Sprintf("%q is not a UID of a claim", claim), http.StatusBadRequest)
		return
	}
	if err := r.stop(request.Context(), claim, parseMoment(request.URL.Query().Get("at"))); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// stop stops a claim's daemon, unless the claim was requested after a moment.
func (r *requests) stop(ctx context.Context, claim types.UID, at Moment) error {
	unlock, err := r.locks.Lock(ctx, string(claim))
	if err != nil {
		return err
	}
	defer unlock()
	if !r.latest(claim, at) {
		return nil
	}
	if err := r.settings.Delete(string(claim)); err != nil {
		return err
	}
	return r.MPS.Stop(ctx, claim)
}

func (r *requests) retain(w http.ResponseWriter, request *http.Request) {
	var claims []types.UID
	text, err := io.ReadAll(http.MaxBytesReader(w, request.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	at := parseMoment(request.URL.Query().Get("at"))
	if err != nil || at == 0 {
		http.Error(w, fmt.Sprintf("the claims that exist, and since when, cannot be read: %v", err), http.StatusBadRequest)
		return
	}
	known, err := r.MPS.known()
	for _, claim := range known {
		if err == nil && !slices.Contains(claims, claim) {
			err = r.stop(request.Context(), claim, at)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
