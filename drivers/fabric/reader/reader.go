// Package reader reads the objects for a picture of the fabric, once or continuously, with the caller's rights. It keeps only the
// facts of each object.
//
// Unreadable kinds are left out and named: a tenant who may read one namespace sees its own claims on a fabric without nodes.
package reader

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/fabric"
	"gpufabric.io/drivers/node/host"
)

// pageSize is how many objects are listed at a time: 500 ResourceSlices of 128 devices each are some 50 MB in protobuf.
const pageSize = 500

// Options select the objects to read.
type Options struct {
	// Namespace limits claims, pods and compute domains; empty: all namespaces.
	Namespace string
	// Agent names the reader in the API server's audit log.
	Agent string
}

// Reader reads a cluster.
type Reader struct {
	kinds []*kind
}

// kind is one resource that is read.
type kind struct {
	name    string // as kubectl takes it
	source  *cache.ListWatch
	example runtime.Object
	facts   func(any) any // nil: the object is of another kind
	add     func(*fabric.Facts, any)
}

// New makes a reader. It does not send a request yet.
func New(config *rest.Config, o Options) (*Reader, error) {
	config = host.Tune(config, o.Agent)
	core, err := host.Client(config, o.Agent)
	if err != nil {
		return nil, err
	}
	domains, err := custom(config, v1beta1.SchemeGroupVersion(), v1beta1.AddToScheme)
	if err != nil {
		return nil, err
	}
	pools, err := custom(config, v1alpha1.SchemeGroupVersion(), v1alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}
	source := func(client cache.Getter, resource, namespace string) *cache.ListWatch {
		return cache.NewListWatchFromClient(client, resource, namespace, fields.Everything())
	}
	v1, resource := core.CoreV1().RESTClient(), core.ResourceV1().RESTClient()
	return &Reader{kinds: []*kind{
		kindOf("nodes", source(v1, "nodes", ""), &corev1.Node{}, fabric.OfNode,
			func(f *fabric.Facts, n *fabric.Node) { f.Nodes = append(f.Nodes, n) }),
		kindOf("resourceslices.resource.k8s.io", source(resource, "resourceslices", ""), &resourceapi.ResourceSlice{}, fabric.OfSlice,
			func(f *fabric.Facts, s *fabric.Slice) { f.Slices = append(f.Slices, s) }),
		kindOf("resourceclaims.resource.k8s.io", source(resource, "resourceclaims", o.Namespace), &resourceapi.ResourceClaim{}, fabric.OfClaim,
			func(f *fabric.Facts, c *fabric.Claim) { f.Claims = append(f.Claims, c) }),
		kindOf("pods", source(v1, "pods", o.Namespace), &corev1.Pod{}, fabric.OfPod,
			func(f *fabric.Facts, p *fabric.Pod) { f.Pods = append(f.Pods, p) }),
		kindOf("computedomains.resource.nvidia.com", source(domains, "computedomains", o.Namespace), &v1beta1.ComputeDomain{}, fabric.OfDomain,
			func(f *fabric.Facts, d *fabric.Domain) { f.Domains = append(f.Domains, d) }),
		kindOf("rdmapools.gpufabric.io", source(pools, "rdmapools", ""), &v1alpha1.RDMAPool{}, fabric.OfPool,
			func(f *fabric.Facts, p *fabric.Pool) { f.Pools = append(f.Pools, p) }),
		kindOf("miglayouts.gpufabric.io", source(pools, "miglayouts", ""), &v1alpha1.MIGLayout{}, fabric.OfLayout,
			func(f *fabric.Facts, l *fabric.Layout) { f.Layouts = append(f.Layouts, l) }),
	}}, nil
}

func kindOf[O runtime.Object, F any](name string, source *cache.ListWatch, example O, facts func(O) *F, add func(*fabric.Facts, *F)) *kind {
	return &kind{name: name, source: source, example: example,
		facts: func(object any) any {
			if o, ok := object.(O); ok {
				return facts(o)
			}
			return nil
		},
		add: func(f *fabric.Facts, object any) {
			if o, ok := object.(*F); ok {
				add(f, o)
			}
		}}
}

// custom makes a client for the kinds of a CRD's group.
func custom(config *rest.Config, version schema.GroupVersion, register func(*runtime.Scheme) error) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := register(scheme); err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", version, err)
	}
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s at %s: %w", version, config.Host, err)
	}
	return client, nil
}

// List reads the cluster once. Unreadable kinds are in the facts' Missing; the error is for a cluster of which none could
// be read.
func (r *Reader) List(ctx context.Context) (*fabric.Facts, error) {
	found := make([][]any, len(r.kinds))
	errs := make([]error, len(r.kinds))
	var reading sync.WaitGroup
	for i, k := range r.kinds {
		reading.Go(func() { found[i], errs[i] = k.list(ctx) })
	}
	reading.Wait()
	facts := &fabric.Facts{}
	for i, k := range r.kinds {
		if errs[i] != nil {
			facts.Missing = append(facts.Missing, fabric.Missing{Resource: k.name, Why: why(errs[i])})
			continue
		}
		for _, object := range found[i] {
			k.add(facts, object)
		}
	}
	if len(facts.Missing) == len(r.kinds) {
		return nil, fmt.Errorf("the cluster cannot be read: %w", errors.Join(errs...))
	}
	return facts, nil
}

func (k *kind) list(ctx context.Context) ([]any, error) {
	var out []any
	for page := (metav1.ListOptions{Limit: pageSize}); ; {
		list, err := k.source.ListWithContext(ctx, page)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", k.name, err)
		}
		if err := meta.EachListItem(list, func(object runtime.Object) error {
			if facts := k.facts(object); facts != nil {
				out = append(out, facts)
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read the list of %s: %w", k.name, err)
		}
		more, err := meta.ListAccessor(list)
		if err != nil {
			return nil, fmt.Errorf("read the list of %s: %w", k.name, err)
		}
		if page.Continue = more.GetContinue(); page.Continue == "" {
			return out, nil
		}
	}
}

// why returns the reason why objects cannot be read, and the remedy.
func why(err error) string {
	switch {
	case apierrors.IsUnauthorized(err):
		return "the API server rejects the credentials: the token is wrong or has expired; sign in again"
	case apierrors.IsForbidden(err):
		return err.Error() + "; ask an administrator for the verbs list and watch on it"
	case apierrors.IsNotFound(err):
		return "the cluster does not have this resource: the chart gpufabric installs it, or Kubernetes is older than 1.34"
	}
	return snapshot.WithoutAddress(err)
}

// Following is the state of a reader that follows the cluster.
type Following struct {
	changed   func()
	kinds     []*kind
	informers []cache.SharedIndexInformer

	mu      sync.Mutex
	trouble map[string]error // by kind: the last attempt to list or watch failed
	tried   map[string]bool
}

// Follow reads the cluster and follows its changes until ctx ends, and then returns. It calls changed, which must not block,
// whenever something is new. It gives started a value from which the facts can be read.
func (r *Reader) Follow(ctx context.Context, changed func(), started func(*Following)) error {
	f := &Following{changed: changed, kinds: r.kinds, trouble: map[string]error{}, tried: map[string]bool{}}
	for _, k := range r.kinds {
		informer := cache.NewSharedIndexInformer(f.noting(k), k.example, 0, cache.Indexers{})
		if err := informer.SetTransform(func(object any) (any, error) {
			if facts := k.facts(object); facts != nil {
				return facts, nil
			}
			return object, nil // facts already
		}); err != nil {
			return fmt.Errorf("follow %s: %w", k.name, err)
		}
		// The source records failures, and the page shows them.
		if err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
			return fmt.Errorf("follow %s: %w", k.name, err)
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(_, _ any) { changed() }, DeleteFunc: func(any) { changed() },
		}); err != nil {
			return fmt.Errorf("follow %s: %w", k.name, err)
		}
		f.informers = append(f.informers, informer)
	}
	started(f)
	var running sync.WaitGroup
	for _, informer := range f.informers {
		running.Go(func() { informer.RunWithContext(ctx) })
		running.Go(func() { // a kind without objects does not send an event
			select {
			case <-informer.HasSyncedChecker().Done():
				changed()
			case <-ctx.Done():
			}
		})
	}
	running.Wait()
	return ctx.Err()
}

// noting is the kind's source, which records the result of each list and watch.
func (f *Following) noting(k *kind) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := k.source.ListWithContext(ctx, o)
			f.note(k, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := k.source.WatchWithContext(ctx, o)
			f.note(k, err)
			return w, err
		},
	}
}

func (f *Following) note(k *kind, err error) {
	if errors.Is(err, context.Canceled) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // the reader ends, or the informer lists again
	}
	f.mu.Lock()
	before := f.trouble[k.name]
	f.tried[k.name] = true
	if err != nil {
		f.trouble[k.name] = err
	} else {
		delete(f.trouble, k.name)
	}
	news := (err == nil) != (before == nil)
	f.mu.Unlock()
	if news {
		f.changed()
	}
}

// Facts returns the present facts. settled is false while some objects have neither been read nor refused: the picture would show
// half a cluster.
func (f *Following) Facts() (facts *fabric.Facts, settled bool) {
	facts, settled = &fabric.Facts{}, true
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, k := range f.kinds {
		err := f.trouble[k.name]
		settled = settled && (f.informers[i].HasSynced() || err != nil)
		if err != nil {
			facts.Missing = append(facts.Missing, fabric.Missing{Resource: k.name, Why: why(err)})
		}
		for _, object := range f.informers[i].GetStore().List() {
			k.add(facts, object)
		}
	}
	return facts, settled
}

// Refused reports whether the API server refused the caller's identity for every kind: the token has expired or was revoked.
func (f *Following) Refused() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	refused := 0
	for _, err := range f.trouble {
		if apierrors.IsUnauthorized(err) {
			refused++
		}
	}
	return refused > 0 && refused == len(f.tried)
}

// Resources are the kinds that a reader lists and watches, in the form of `kubectl auth can-i`.
func Resources() []string {
	return []string{"nodes", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "pods",
		"computedomains.resource.nvidia.com", "rdmapools.gpufabric.io", "miglayouts.gpufabric.io"}
}
