// Package maintenance automates two risky operations on working nodes: restarting the IMEX daemons of a domain, and clearing GPUs for a new
// MIG layout.
package maintenance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/drivers/api/resource/v1beta1"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/domain"
	"gpufabric.io/provider/internal/object"
	"gpufabric.io/provider/internal/release"
)

// daemonComponent is the component label of the IMEX daemons' pods.
const daemonComponent = "imex-daemon"

// MissingError means that the object to work on does not exist.
type MissingError struct{ What, Remedy string }

func (e *MissingError) Error() string { return e.What + "; " + e.Remedy }

// StuckError reports the reason of a wait that timed out.
type StuckError struct {
	Doing   string
	Waiting []string
	cause   error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("%s did not end in time; waiting for %s", e.Doing, strings.Join(e.Waiting, "; "))
}

func (e *StuckError) Unwrap() error { return e.cause }

// RestartIMEX ends the IMEX daemons of a domain on the nodes (none: on all of the domain's), and waits until new ones are ready and
// the domain is as before. It returns the nodes, sorted. It reports its progress through say. Errors: *MissingError, *StuckError,
// or the API server's.
func RestartIMEX(ctx context.Context, client *cluster.Client, key object.Key, nodes []string, say func(string)) ([]string, error) {
	domains := object.NewStore(client, domain.Kind)
	obj, err := domains.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if obj == nil {
		return nil, &MissingError{
			"there is no ComputeDomain " + key.String(),
			"list those there are with kubectl get computedomains --all-namespaces",
		}
	}
	before := domain.Read(obj)
	selector := v1beta1.LabelComputeDomain + "=" + string(obj.GetUID()) + ",app.kubernetes.io/component=" + daemonComponent
	old, err := daemons(ctx, client, selector, key, nodes)
	if err != nil {
		return nil, err
	}
	for node, pod := range old {
		uid := pod.UID
		err := client.Typed.CoreV1().Pods(
			pod.Namespace,
		).Delete(
			ctx,
			pod.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
		)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a pod that is another one by now has restarted already
			return nil, fmt.Errorf("end the IMEX daemon %s/%s on %s: %w", pod.Namespace, pod.Name, node, err)
		}
	}
	if err := awaitDaemons(ctx, client, selector, old, say); err != nil {
		return nil, err
	}
	last, err := domains.Wait(ctx, key, func(obj *unstructured.Unstructured) (bool, error) {
		if obj == nil {
			return false, object.ErrGone
		}
		return !before.Ready || domain.Read(obj).Ready, nil
	})
	if err != nil {
		waiting := "the domain"
		if last != nil {
			waiting = domain.Read(last).Missing()
		}
		return nil, &StuckError{"the restart of the IMEX daemons of " + key.String(), []string{waiting}, err}
	}
	return slices.Sorted(maps.Keys(old)), nil
}

// daemons returns the domain's daemon pods by node, of the nodes wanted.
func daemons(ctx context.Context, client *cluster.Client, selector string, key object.Key, nodes []string) (map[string]*corev1.Pod, error) {
	list, err := client.Typed.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the IMEX daemons of %s: %w", key, err)
	}
	all := map[string]*corev1.Pod{}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil {
			all[pod.Spec.NodeName] = pod
		}
	}
	if len(all) == 0 {
		return nil, &MissingError{fmt.Sprintf("ComputeDomain %s has no IMEX daemon's pod", key),
			"a domain has them while pods that use it run; where the hosts run nvidia-imex themselves, restart it there"}
	}
	if len(nodes) == 0 {
		return all, nil
	}
	chosen := map[string]*corev1.Pod{}
	for _, node := range nodes {
		pod, ok := all[node]
		if !ok {
			return nil, &MissingError{
				fmt.Sprintf("ComputeDomain %s has no IMEX daemon on %s", key, node),
				"it has some on " + strings.Join(slices.Sorted(maps.Keys(all)), ", "),
			}
		}
		chosen[node] = pod
	}
	return chosen, nil
}

// awaitDaemons follows the daemons' pods until every node of old has another one that is ready.
func awaitDaemons(ctx context.Context, client *cluster.Client, selector string, old map[string]*corev1.Pod, say func(string)) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	factory := informers.NewSharedInformerFactoryWithOptions(
		client.Typed,
		0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }),
	)
	pods := factory.Core().V1().Pods().Informer()
	changed := make(chan struct{}, 1)
	signal := func(any) {
		select {
		case changed <- struct{}{}:
		default: // one signal pending is enough: the loop looks at every pod
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: signal, UpdateFunc: func(_, obj any) { signal(obj) },
		DeleteFunc: signal}); err != nil {
		return err
	}
	factory.StartWithContext(watching)
	defer func() {
		stop()
		factory.Shutdown()
	}()
	factory.WaitForCacheSyncWithContext(ctx)
	reported := ""
	for {
		waiting := notYet(pods.GetStore().List(), old)
		if len(waiting) == 0 {
			return nil
		}
		if now := fmt.Sprintf("%d of %d IMEX daemons ready again; waiting for %s", len(old)-len(waiting), len(old),
			strings.Join(waiting, "; ")); now != reported {
			reported = now
			say(now)
		}
		select {
		case <-ctx.Done():
			return &StuckError{"the restart of the IMEX daemons", waiting, ctx.Err()}
		case <-changed:
		}
	}
}

// notYet returns for each node of old without a new ready daemon the reason.
func notYet(pods []any, old map[string]*corev1.Pod) []string {
	ended := map[types.UID]bool{}
	for _, pod := range old {
		ended[pod.UID] = true
	}
	why := map[string]string{}
	for node := range old {
		why[node] = node + ": its new daemon's pod does not exist yet"
	}
	for _, obj := range pods {
		pod, ok := obj.(*corev1.Pod)
		if !ok || why[pod.Spec.NodeName] == "" || ended[pod.UID] || pod.DeletionTimestamp != nil {
			continue
		}
		if trouble := release.PodTrouble(pod); trouble != "" {
			why[pod.Spec.NodeName] = pod.Spec.NodeName + ": " + trouble
		} else if ready(pod) {
			delete(why, pod.Spec.NodeName)
		}
	}
	waiting := make([]string, 0, len(why))
	for _, node := range slices.Sorted(maps.Keys(why)) {
		waiting = append(waiting, why[node])
	}
	return waiting
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(
		pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue },
	)
}
