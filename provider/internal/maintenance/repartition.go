package maintenance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/object"
)

// MIGLayoutKind is the kind that Repartition works on.
var MIGLayoutKind = object.Kind{
	Group:   v1alpha1.GroupName,
	Version: v1alpha1.SchemeGroupVersion().Version,
	Name:    "MIGLayout",
	Plural:  "miglayouts",
}

// evictAgain is the pause after an eviction that a disruption budget refused: budgets send no event when they allow one.
const evictAgain = 5 * time.Second

// Repartitioned is the result of Repartition.
type Repartitioned struct {
	Nodes   []string // that have the layout, sorted
	Evicted []string // pods, namespace/name, sorted
}

// Repartition applies a MIGLayout on all of its nodes. It evicts pods that have a GPU for which a node waits, through the Eviction
// API, which respects disruption budgets; without evict it only waits for them to end. It reports its progress through say. Errors:
// *MissingError, *StuckError, or the API server's.
func Repartition(ctx context.Context, client *cluster.Client, name string, evict bool, say func(string)) (Repartitioned, error) {
	r := &repartition{client: client, name: name, evict: evict, say: say, evicted: map[string]bool{}}
	layouts := object.NewStore(client, MIGLayoutKind)
	obj, err := layouts.Get(ctx, object.Key{Name: name})
	if err != nil {
		return Repartitioned{}, err
	}
	if obj == nil {
		return Repartitioned{}, &MissingError{"there is no MIGLayout " + name, "list those there are with kubectl get miglayouts"}
	}
	for {
		var layout v1alpha1.MIGLayout
		round, stop := r.round(ctx)
		_, err := layouts.Wait(round, object.Key{Name: name}, func(obj *unstructured.Unstructured) (bool, error) {
			if obj == nil {
				return false, object.ErrGone
			}
			read, err := object.Read[v1alpha1.MIGLayout](obj)
			if err != nil {
				return false, err
			}
			layout = *read
			return r.stands(&layout), nil
		})
		stop()
		switch {
		case err != nil && ctx.Err() != nil:
			return Repartitioned{}, &StuckError{"the repartitioning to MIGLayout " + name, r.waiting(&layout), ctx.Err()}
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return Repartitioned{}, err
		}
		done, err := r.step(ctx, &layout)
		if err != nil || done {
			return Repartitioned{nodeNames(&layout), slices.Sorted(maps.Keys(r.evicted))}, err
		}
	}
}

// repartition is one run of Repartition.
type repartition struct {
	client   *cluster.Client
	name     string
	evict    bool
	say      func(string)
	reported string
	seen     string          // the status that was acted on
	evicted  map[string]bool // pods, namespace/name
	blocked  string          // why an eviction was refused, for now
}

// round bounds one wait for the status to change: a refused eviction is retried after a pause.
func (r *repartition) round(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.blocked != "" {
		return context.WithTimeout(ctx, evictAgain)
	}
	return context.WithCancel(ctx)
}

// stands reports whether there is work: everything is applied, or a node's state changed since the last step.
func (r *repartition) stands(layout *v1alpha1.MIGLayout) bool {
	if now := strings.Join(r.waiting(layout), "; "); now != r.reported {
		r.reported = now
		if now != "" {
			r.say("waiting for " + now)
		}
	}
	return applied(layout) || fmt.Sprint(layout.Status.Nodes) != r.seen
}

// step evicts the pods for which nodes wait, and reports whether the layout is applied.
func (r *repartition) step(ctx context.Context, layout *v1alpha1.MIGLayout) (done bool, err error) {
	r.seen, r.blocked = fmt.Sprint(layout.Status.Nodes), ""
	if applied(layout) {
		return true, nil
	}
	if !r.evict {
		return false, nil
	}
	pods, err := r.holders(ctx, layout)
	if err != nil {
		return false, err
	}
	for _, pod := range pods {
		err := r.client.Typed.PolicyV1().Evictions(
			pod.Namespace,
		).Evict(
			ctx,
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}},
		)
		switch {
		case err == nil:
			r.evicted[pod.String()] = true
			r.say("evicted pod " + pod.String())
		case apierrors.IsTooManyRequests(err):
			r.blocked = fmt.Sprintf("pod %s may not be evicted yet: %v", pod, err)
			r.seen = "" // look again after a pause
		case !apierrors.IsNotFound(err):
			return false, fmt.Errorf("evict pod %s: %w", pod, err)
		}
	}
	return false, nil
}

// waiting returns for each node without the layout the reason.
func (r *repartition) waiting(layout *v1alpha1.MIGLayout) []string {
	var list []string
	for _, n := range layout.Status.Nodes {
		if n.State != v1alpha1.MIGLayoutApplied || n.ObservedGeneration < layout.Generation {
			list = append(list, n.Name+": "+n.Message)
		}
	}
	if len(layout.Status.Nodes) == 0 {
		list = append(list, "a node to report; check that MIGLayout "+r.name+" selects nodes on which the GPU plugin runs")
	}
	if r.blocked != "" {
		list = append(list, r.blocked)
	}
	return list
}

// applied reports whether every node has the layout as it is now.
func applied(layout *v1alpha1.MIGLayout) bool {
	return len(layout.Status.Nodes) > 0 && !slices.ContainsFunc(layout.Status.Nodes, func(n v1alpha1.MIGLayoutNode) bool {
		return n.State != v1alpha1.MIGLayoutApplied || n.ObservedGeneration < layout.Generation
	})
}

// holder finds the claims that a waiting node's message names: "GPU 3: ... is held by claim team/trainer".
var holder = regexp.MustCompile(`held by claim ([a-z0-9-]+)/([a-z0-9.-]*[a-z0-9])`)

// holders lists the pods of the claims for which nodes wait. A node names one claim of each GPU at a time.
func (r *repartition) holders(ctx context.Context, layout *v1alpha1.MIGLayout) ([]object.Key, error) {
	var pods []object.Key
	for _, n := range layout.Status.Nodes {
		if n.State != v1alpha1.MIGLayoutWaiting || n.ObservedGeneration < layout.Generation {
			continue
		}
		for _, match := range holder.FindAllStringSubmatch(n.Message, -1) {
			claim, err := r.client.Typed.ResourceV1().ResourceClaims(match[1]).Get(ctx, match[2], metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue // on its way out already
			}
			if err != nil {
				return nil, fmt.Errorf("look up the holders of GPUs of %s: %w", n.Name, err)
			}
			for _, pod := range inventory.Pods(claim) {
				if key := (object.Key{Namespace: claim.Namespace, Name: pod}); !slices.Contains(pods, key) {
					pods = append(pods, key)
				}
			}
		}
	}
	return pods, nil
}

func nodeNames(layout *v1alpha1.MIGLayout) []string {
	names := make([]string, 0, len(layout.Status.Nodes))
	for _, n := range layout.Status.Nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}
