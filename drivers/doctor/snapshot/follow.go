package snapshot

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Gather is how long Follow collects changes before it reports them: a domain forms in a burst.
const Gather = 200 * time.Millisecond

// Follow keeps a Snapshot up to date by watches until ctx ends, and calls changed with each new one. A Snapshot that was handed
// over never changes. The first one comes when every kind was read once, or was refused. It returns a *SilentError where the API
// server does not answer at the start; later the watches restart by themselves.
func (r *Reader) Follow(ctx context.Context, scope Scope, changed func(*Snapshot)) error {
	f := &following{reader: r, system: scope.System, dirty: make(chan struct{}, 1), failed: map[int]Unread{}}
	if err := r.server(ctx, &f.start); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, k := range kinds(scope) {
		f.followed = append(f.followed, f.follow(ctx, group, i, k))
	}
	group.Go(func() error {
		f.tell(ctx, changed)
		return nil
	})
	return group.Wait()
}

// following is one Follow.
type following struct {
	reader   *Reader
	system   string
	start    Snapshot // of the server alone
	followed []followed
	dirty    chan struct{}

	mu     sync.Mutex
	failed map[int]Unread // by index of the kind
}

// followed is one kind that is followed.
type followed struct {
	kind
	store  cache.Store
	synced func() bool
}

func (f *following) follow(ctx context.Context, group *errgroup.Group, i int, k kind) followed {
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: f.source(i, k),
		ObjectType:    nil,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { f.mark() }, UpdateFunc: func(_, _ any) { f.mark() }, DeleteFunc: func(any) { f.mark() },
		},
		Transform: func(object any) (any, error) {
			if o, ok := object.(client.Object); ok {
				k.reduce(o)
			}
			return object, nil
		},
	})
	group.Go(func() error {
		controller.RunWithContext(ctx)
		return nil
	})
	return followed{k, store, controller.HasSynced}
}

// source lists and watches a kind, and records whether it may.
func (f *following) source(i int, k kind) cache.ListerWatcher {
	options := func(o metav1.ListOptions) []client.ListOption {
		return append(slices.Clone(k.options), &client.ListOptions{Limit: o.Limit, Continue: o.Continue, Raw: &o})
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := k.list()
			err := f.reader.client.List(ctx, list, options(o)...)
			f.note(i, k, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return f.reader.watching.Watch(ctx, k.list(), options(o)...)
		},
	}
}

// note records why a kind cannot be listed, or that it can.
func (f *following) note(i int, k kind, err error) {
	f.mu.Lock()
	_, was := f.failed[i]
	if err != nil {
		f.failed[i] = unread(k.resource, "list", k.in(), err)
	} else {
		delete(f.failed, i)
	}
	f.mu.Unlock()
	if was != (err != nil) {
		f.mark()
	}
}

// mark records that something changed. A waiting mark covers this one too.
func (f *following) mark() {
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// tell calls changed with Snapshots.
func (f *following) tell(ctx context.Context, changed func(*Snapshot)) {
	gather := time.NewTimer(Gather)
	defer gather.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.dirty:
		}
		gather.Reset(Gather)
		select {
		case <-ctx.Done():
			return
		case <-gather.C:
		}
		if s, whole := f.snapshot(); whole {
			changed(s)
		} else {
			f.mark() // an informer has no event for a kind without objects: look again
		}
	}
}

// snapshot builds a Snapshot from the watches; whole is false until each kind has been read or refused.
func (f *following) snapshot() (s *Snapshot, whole bool) {
	s = &Snapshot{Server: f.start.Server, Unread: slices.Clone(f.start.Unread)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, k := range f.followed {
		if u, failed := f.failed[i]; failed {
			s.Unread = append(s.Unread, u)
		} else if !k.synced() {
			return nil, false
		}
		for _, object := range k.store.List() {
			if o, ok := object.(client.Object); ok {
				k.keep(s, o)
			}
		}
	}
	s.tidy()
	s.Release = s.release(f.system)
	s.disown()
	requests, throttled, skew := f.reader.meter.read()
	s.Server.Requests, s.Server.Throttled, s.Server.Skew = requests, throttled, skew
	s.Server.Taken = time.Now().Add(-skew)
	return s, true
}
