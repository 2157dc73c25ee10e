package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// The control endpoint offers over HTTP, and only on loopback, the events of fakefabric inject:
//
//	GET  /node            what is rendered, as JSON
//	GET  /events          the events there are, as JSON
//	POST /events/{event}  triggers one; the body is a JSON object of its arguments, all strings. 204, or 400 for a wrong argument,
//	                      409 for an event that is impossible in the node's state, each with a sentence.

func (a *agent) describe(w http.ResponseWriter, _ *http.Request) {
	r, err := tree.ReadRendered(a.Root)
	if errors.Is(err, os.ErrNotExist) {
		http.Error(w, "no hardware is rendered", http.StatusNotFound)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	a.reply(w, r)
}

func (a *agent) events(w http.ResponseWriter, _ *http.Request) {
	a.reply(w, fault.Kinds())
}

func (a *agent) reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		a.Log.Warn("answer a request", "error", err)
	}
}

func (a *agent) inject(w http.ResponseWriter, r *http.Request) {
	args := fault.Arguments{}
	body := http.MaxBytesReader(w, r.Body, 1<<16)
	if r.ContentLength != 0 {
		if err := json.NewDecoder(body).Decode(&args); err != nil {
			http.Error(w, fmt.Sprintf("the body must be a JSON object of texts: %v", err), http.StatusBadRequest)
			return
		}
	}
	err := fault.Apply(a.Root, r.PathValue("event"), args)
	a.Log.Info("inject", "event", r.PathValue("event"), "arguments", args, "error", err)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, fault.ErrRefused), errors.Is(err, os.ErrNotExist):
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// syncMIG updates the capability files of MIG instances for clients that see only the library and the state. The state has no event
// for a change of layout, so syncMIG polls its sequence number, which costs one read of memory.
func (a *agent) syncMIG(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var f *state.File
	var seen uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if f == nil || f.Replaced() {
			var err error
			if f, err = state.Open(a.Root); err != nil {
				f = nil
				continue
			}
			seen = 0
		}
		if n := f.Sequence(); n != seen {
			seen = n
			if err := a.writeMIG(f); err != nil {
				a.Log.Warn("capability files", "error", err)
			}
		}
	}
}

func (a *agent) writeMIG(f *state.File) error {
	b, err := f.Read()
	if err != nil {
		return err
	}
	return tree.SyncMIG(a.Root, b) // only the kernel's part, since clients that can write to /dev make the nodes there
}
