package snapshot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SilentError is the error of an API server that does not answer at all.
type SilentError struct {
	URL   string
	Cause error
}

// Error implements error.
func (e *SilentError) Error() string {
	return fmt.Sprintf("the API server %s did not say its version: %v", e.URL, e.Cause)
}

// Unwrap returns the cause.
func (e *SilentError) Unwrap() error { return e.Cause }

// Take reads a cluster with a reader of its own. See Read.
func Take(ctx context.Context, config *rest.Config, scope Scope) (*Snapshot, error) {
	reader, err := NewReader(config, scope)
	if err != nil {
		return nil, err
	}
	return reader.Read(ctx, scope)
}

// Read reads a cluster: each kind once, in pages. Unreadable kinds are in Unread; the error is a *SilentError if all are.
func (r *Reader) Read(ctx context.Context, scope Scope) (*Snapshot, error) {
	s := &Snapshot{}
	if err := r.server(ctx, s); err != nil {
		return nil, err
	}
	w := &work{reader: r, scope: scope, into: s}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, k := range kinds(scope) {
		group.Go(func() error { k.read(ctx, w); return nil })
	}
	_ = group.Wait() // failures are recorded as unread
	s.tidy()
	s.Release = s.release(scope.System)
	s.silence()
	s.disown()
	requests, throttled, skew := r.meter.read()
	s.Server.Requests, s.Server.Throttled, s.Server.Skew = requests, throttled, skew
	s.Server.Taken = time.Now().Add(-skew)
	return s, nil
}

// server reads the version and the API groups.
func (r *Reader) server(ctx context.Context, s *Snapshot) error {
	var version struct {
		GitVersion     string `json:"gitVersion"`
		Minor          string `json:"minor"`
		EmulationMinor string `json:"emulationMinor"`
	}
	body, err := r.discovery.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err == nil {
		err = decode(body, &version)
	}
	if err != nil {
		return &SilentError{URL: r.url, Cause: err}
	}
	s.Server.URL, s.Server.Version = r.url, version.GitVersion
	if version.EmulationMinor != version.Minor {
		s.Server.Emulates = version.EmulationMinor
	}
	var groups metav1.APIGroupList
	if body, err = r.discovery.RESTClient().Get().AbsPath("/apis").DoRaw(ctx); err == nil {
		err = decode(body, &groups)
	}
	if err != nil {
		s.Unread = append(s.Unread, unread(schema.GroupResource{Resource: "apigroups"}, "get", "", err))
		return nil
	}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			s.Server.Groups = append(s.Server.Groups, v.GroupVersion)
		}
	}
	return nil
}

// work is one running Read.
type work struct {
	reader *Reader
	scope  Scope

	mu   sync.Mutex
	into *Snapshot
}

func (w *work) note(u Unread) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.into.Unread = append(w.into.Unread, u)
}

// read reads the kind everywhere, or where the user may.
func (k kind) read(ctx context.Context, w *work) {
	err := k.pages(ctx, w)
	if err == nil {
		return
	}
	w.note(unread(k.resource, "list", k.in(), err))
	if !k.namespaced || k.in() != "" || !apierrors.IsForbidden(err) {
		return
	}
	for _, namespace := range w.scope.namespaces() {
		narrow := k
		narrow.options = append(slices.Clone(k.options), client.InNamespace(namespace))
		if err := narrow.pages(ctx, w); err != nil {
			w.note(unread(k.resource, "list", namespace, err))
		}
	}
}

// pages reads page by page. After an expired continuation it starts again once, because the list has changed.
func (k kind) pages(ctx context.Context, w *work) error {
	var kept []client.ObjectList
	next, expired := "", false
	for page := 0; ; page++ {
		if page == maxPages {
			w.note(Unread{Kind: k.resource.String(), Verb: "list", Namespace: k.in(), Why: Bounded,
				Message: fmt.Sprintf("there are more than %d; the rest is not read", pageSize*maxPages)})
			break
		}
		list := k.list()
		options := append(slices.Clone(k.options), client.Limit(pageSize), client.Continue(next))
		err := w.reader.client.List(ctx, list, options...)
		if apierrors.IsResourceExpired(err) && !expired {
			kept, next, expired, page = nil, "", true, -1
			continue
		}
		if err != nil {
			return err
		}
		kept = append(kept, list)
		if next = list.GetContinue(); next == "" {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, list := range kept {
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			object := o.(client.Object) // every kind of a Snapshot has metadata
			k.reduce(object)
			k.keep(w.into, object)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// unread reports why a kind was not read.
func unread(resource schema.GroupResource, verb, namespace string, err error) Unread {
	u := Unread{Kind: resource.String(), Verb: verb, Namespace: namespace, Why: Broken, Message: WithoutAddress(err)}
	var timeout net.Error
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		u.Why = Forbidden
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		u.Why, u.Message = Absent, "the API server does not serve it"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout(), apierrors.IsTimeout(err):
		u.Why = Silent
	}
	return u
}

// WithoutAddress is an error's text for others than the user. An answer of the API server has its own words. The errors of the transport
// have its address: of these only the kind is given.
func WithoutAddress(err error) string {
	var status apierrors.APIStatus
	var timeout net.Error
	var sent *url.Error
	switch {
	case errors.As(err, &status):
		return status.Status().Message
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "the API server did not answer in time"
	case errors.Is(err, context.Canceled):
		return "the request was cancelled"
	case errors.As(err, &sent), errors.As(err, &timeout):
		return "the connection to the API server failed"
	}
	return "the API server's answer was not understood"
}
