package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/node/observed"
)

// daemons are the IMEX daemon pods of this node, by domain. A channel waits for their readiness; the plugin sees it on the
// pods themselves, one step earlier than in the domain's status, and at a cost that does not grow with the cluster.
type daemons struct {
	node, namespace string
	client          kubernetes.Interface
	pods            observed.Value[[]*corev1.Pod]
}

// follow keeps the pods current until ctx ends.
func (d *daemons) follow(ctx context.Context) {
	source := cache.NewFilteredListWatchFromClient(d.client.CoreV1().RESTClient(), "pods", d.namespace, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", d.node).String()
		options.LabelSelector = v1beta1.LabelComputeDomain
	})
	var store cache.Store
	changed := func(any) {
		objects := store.List()
		pods := make([]*corev1.Pod, 0, len(objects))
		for _, object := range objects {
			pods = append(pods, object.(*corev1.Pod))
		}
		d.pods.Set(pods)
	}
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: changed,
		},
	})
	informer.RunWithContext(ctx)
}

// await returns nil as soon as the node's daemon for domain is ready. Until then it reports the missing condition to waiting. When
// ctx ends first, the error names it.
func (d *daemons) await(ctx context.Context, domain types.UID, waiting func(message string)) error {
	for {
		pods, changed := d.pods.Get()
		missing := missingOf(pods, domain)
		if missing == "" {
			return nil
		}
		waiting(missing)
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.New(missing)
		}
	}
}

// unreadyAfter is how long the clique's daemon may be not ready before new pods are kept away. A daemon that ended by itself is
// READY again sooner, and each change of the taint costs a write on each node.
const unreadyAfter = 5 * time.Second

// followDaemon keeps unready current until ctx ends. Without the taint the scheduler would send pods here that wait for their channel and
// could run elsewhere.
func (k *preparer) followDaemon(ctx context.Context) {
	var limit <-chan time.Time // nil: there is no wait
	for {
		object, objectChanged := k.clique.object.Get()
		pods, podsChanged := k.daemons.pods.Get()
		ready := object != nil && missingOf(pods, object.UID) == ""
		switch unready := k.unready.Now() != ""; {
		case ready:
			if limit = nil; unready {
				k.unready.Set("")
			}
		case limit == nil && !unready:
			limit = time.After(unreadyAfter)
		}
		select {
		case <-objectChanged:
		case <-podsChanged:
		case <-limit:
			limit = nil
			k.unready.Set(problemDaemon)
		case <-ctx.Done():
			return
		}
	}
}

// missingOf returns the reason why a domain's daemon is not ready; empty if it is ready.
func missingOf(pods []*corev1.Pod, domain types.UID) string {
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return pod.Labels[v1beta1.LabelComputeDomain] != string(domain) || pod.DeletionTimestamp != nil
	})
	if len(pods) == 0 {
		return "the IMEX daemon's pod is not on this node yet"
	}
	// A pod that failed, as by an eviction, stays beside its successor for a while.
	if slices.ContainsFunc(pods, computedomain.PodReady) {
		return ""
	}
	pod := slices.MaxFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return fmt.Sprintf("the IMEX daemon's pod %s is not ready: %s", pod.Name, computedomain.WhyNotReady(pod))
}
