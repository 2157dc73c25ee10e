package release

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-log/tflog"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/provider/internal/feed"
	"gpufabric.io/provider/internal/object"
)

// workload is a Deployment, DaemonSet or StatefulSet of a release.
type workload struct {
	Kind, Namespace, Name string
	selector              *metav1.LabelSelector
}

// podOwner is the common part of Deployments, DaemonSets and StatefulSets, as far as it is needed here.
type podOwner struct {
	Spec struct {
		Selector *metav1.LabelSelector `json:"selector"`
		Template struct {
			Spec struct {
				Containers []struct {
					Name string `json:"name"`
				} `json:"containers"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

func (w workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

func workloads(r *Release) ([]workload, error) {
	list, err := objects(r.Manifest, r.Namespace)
	if err != nil {
		return nil, err
	}
	var out []workload
	for _, obj := range list {
		if k := obj.GetKind(); k != "Deployment" && k != "DaemonSet" && k != "StatefulSet" {
			continue
		}
		w, err := object.Read[podOwner](obj)
		if err != nil {
			return nil, fmt.Errorf("the release's manifest: %w", err)
		}
		out = append(out, workload{obj.GetKind(), obj.GetNamespace(), obj.GetName(), w.Spec.Selector})
	}
	return out, nil
}

// Rollout is the progress of a release's workloads.
type Rollout struct {
	Total   int
	Waiting []string // one sentence for each workload that is not rolled out yet
	Notes   []string // rolled out, but worth knowing: a DaemonSet that matches no node
	// Scheduled has, for each DaemonSet ("DaemonSet namespace/name"), on how many nodes its pods are to run.
	Scheduled map[string]int32
}

// Fallen adds to Waiting each DaemonSet that matches no node any more and matched some before.
func (r *Rollout) Fallen(before map[string]int32) {
	for _, name := range slices.Sorted(maps.Keys(r.Scheduled)) {
		if n := before[name]; r.Scheduled[name] == 0 && n > 0 {
			r.Waiting = append(r.Waiting, fmt.Sprintf("%s: matches no node, and had pods on %d: check its nodeSelector and tolerations against the "+
				"nodes' labels and taints", name, n))
		}
	}
}

// Ready reports whether everything runs.
func (r Rollout) Ready() bool { return len(r.Waiting) == 0 }

// askAgain is the pause between two requests that check whether the server accepts the credentials again.
const askAgain = 5 * time.Second

// Await follows the release's workloads by watch until all are rolled out. When ctx ends first, its error has the objects for which
// it still waits, with the pods and the reasons.
func (m *Manager) Await(ctx context.Context, r *Release) (Rollout, error) {
	list, err := workloads(r)
	if err != nil || len(list) == 0 {
		return Rollout{}, err
	}
	// The informers below retry a refused list for ever; a request before turns missing rights into an error.
	if state, err := m.Rollout(ctx, r); err != nil {
		return state, err
	}
	watching, stop := context.WithCancel(ctx)
	changed, rejected := make(chan struct{}, 1), make(chan struct{}, 1)
	factories := m.watchWorkloads(watching, list, changed, rejected)
	defer func() {
		stop()
		for _, f := range factories {
			f.Shutdown()
		}
	}()
	reported := ""
	var rejections feed.Rejections
	var ask <-chan time.Time
	for {
		state := Rollout{Total: len(list)}
		for _, w := range list {
			state.add(w, cached(factories[w.Namespace], w))
		}
		var again <-chan time.Time
		if state.Ready() {
			shaky, rest, err := m.unsteady(ctx, list)
			if err != nil || len(shaky) == 0 {
				return state, err
			}
			state.Waiting, again = shaky, time.After(rest)
		}
		if now := strings.Join(state.Waiting, "; "); now != reported {
			reported = now
			tflog.Info(ctx, fmt.Sprintf("%d of %d workloads rolled out", len(list)-len(state.Waiting), len(list)), map[string]any{"waiting": now})
		}
		select {
		case <-ctx.Done():
			m.explain(context.WithoutCancel(ctx), list, &state)
			return state, ctx.Err()
		case <-rejected:
			ask = time.After(0)
		case <-ask:
			_, err := m.Rollout(ctx, r)
			if rejections.Last(err) {
				return state, err
			}
			if ask = nil; apierrors.IsUnauthorized(err) {
				ask = time.After(askAgain) // until they are accepted again, or were rejected for too long
			}
		case <-changed:
		case <-again:
		}
	}
}

// Rollout reads the progress of the release's workloads once, without reasons of single pods.
func (m *Manager) Rollout(ctx context.Context, r *Release) (Rollout, error) {
	list, err := workloads(r)
	if err != nil {
		return Rollout{}, err
	}
	state := Rollout{Total: len(list)}
	for _, w := range list {
		obj, err := m.fetch(ctx, w)
		if err != nil {
			return Rollout{}, err
		}
		state.add(w, obj)
	}
	return state, nil
}

// watchWorkloads starts informers of the workloads' kinds. They retry for ever; rejected is called when the server did not accept
// the credentials.
func (m *Manager) watchWorkloads(
	ctx context.Context,
	list []workload,
	changed, rejected chan<- struct{},
) map[string]informers.SharedInformerFactory {
	send := func(to chan<- struct{}) {
		select {
		case to <- struct{}{}:
		default: // one signal pending is enough: the loop looks at everything
		}
	}
	signal := func(any) { send(changed) }
	failed := func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsUnauthorized(err) {
			send(rejected)
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: signal, UpdateFunc: func(_, obj any) { signal(obj) }, DeleteFunc: signal}
	factories := map[string]informers.SharedInformerFactory{}
	watched := map[string]bool{}
	for _, w := range list {
		f, ok := factories[w.Namespace]
		if !ok {
			f = informers.NewSharedInformerFactoryWithOptions(m.client.Typed, 0, informers.WithNamespace(w.Namespace))
			factories[w.Namespace] = f
		}
		if id := w.Namespace + "/" + w.Kind; !watched[id] {
			watched[id] = true
			// These fail only on an informer that was stopped or started; this one was neither.
			_, _ = informerOf(f, w.Kind).AddEventHandler(handler)
			_ = informerOf(f, w.Kind).SetWatchErrorHandlerWithContext(failed)
		}
	}
	for _, f := range factories {
		f.StartWithContext(ctx)
		f.WaitForCacheSyncWithContext(ctx)
	}
	return factories
}

func informerOf(f informers.SharedInformerFactory, kind string) cache.SharedIndexInformer {
	switch kind {
	case "Deployment":
		return f.Apps().V1().Deployments().Informer()
	case "DaemonSet":
		return f.Apps().V1().DaemonSets().Informer()
	}
	return f.Apps().V1().StatefulSets().Informer()
}

func cached(f informers.SharedInformerFactory, w workload) any {
	obj, exists, err := informerOf(f, w.Kind).GetStore().GetByKey(w.Namespace + "/" + w.Name)
	if err != nil || !exists {
		return nil
	}
	return obj
}

// add checks one workload; obj is nil when it does not exist.
func (r *Rollout) add(w workload, obj any) {
	switch o := obj.(type) {
	case *appsv1.Deployment:
		want := replicas(o.Spec.Replicas)
		if s := o.Status; s.ObservedGeneration < o.Generation || s.UpdatedReplicas < want || s.AvailableReplicas < want ||
			s.Replicas > s.UpdatedReplicas {
			r.wait(w, s.ObservedGeneration < o.Generation, s.UpdatedReplicas, s.AvailableReplicas, want)
		}
	case *appsv1.DaemonSet:
		s := o.Status
		if r.Scheduled == nil {
			r.Scheduled = map[string]int32{}
		}
		r.Scheduled[w.String()] = s.DesiredNumberScheduled
		if s.ObservedGeneration < o.Generation || s.UpdatedNumberScheduled < s.DesiredNumberScheduled ||
			s.NumberAvailable < s.DesiredNumberScheduled {
			r.wait(w, s.ObservedGeneration < o.Generation, s.UpdatedNumberScheduled, s.NumberAvailable, s.DesiredNumberScheduled)
		} else if s.DesiredNumberScheduled == 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s matches no node: check its nodeSelector and tolerations against the nodes' labels and taints.",
				w))
		}
	case *appsv1.StatefulSet:
		want := replicas(o.Spec.Replicas)
		if s := o.Status; s.ObservedGeneration < o.Generation || s.UpdatedReplicas < want || s.AvailableReplicas < want {
			r.wait(w, s.ObservedGeneration < o.Generation, s.UpdatedReplicas, s.AvailableReplicas, want)
		}
	default:
		r.Waiting = append(r.Waiting, w.String()+": does not exist")
	}
}

func (r *Rollout) wait(w workload, behind bool, updated, available, want int32) {
	text := fmt.Sprintf("%s: %d of %d pods available", w, available, want)
	switch {
	case behind:
		text = w.String() + ": its controller has not taken the change up yet"
	case updated < want:
		text += fmt.Sprintf(", %d updated", updated)
	case available >= want:
		text += ", and old ones have yet to end"
	}
	r.Waiting = append(r.Waiting, text)
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// podsOf lists the pods that a workload selects.
func (m *Manager) podsOf(ctx context.Context, w workload) ([]corev1.Pod, error) {
	pods, err := m.client.Typed.CoreV1().Pods(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(w.selector)})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", w, err)
	}
	return pods.Items, nil
}

// explain adds to each waiting workload the reasons of its pods.
func (m *Manager) explain(ctx context.Context, list []workload, state *Rollout) {
	for i, sentence := range state.Waiting {
		at := slices.IndexFunc(list, func(w workload) bool { return strings.HasPrefix(sentence, w.String()+":") })
		if at < 0 {
			continue
		}
		pods, err := m.podsOf(ctx, list[at])
		if err != nil {
			continue // the sentence stands without the pods' reasons
		}
		var reasons []string
		for i := range pods {
			if why := PodTrouble(&pods[i]); why != "" {
				reasons = append(reasons, why)
			}
		}
		if len(reasons) > 0 {
			state.Waiting[i] = sentence + "; " + strings.Join(reasons, "; ")
		} else if len(pods) == 0 {
			state.Waiting[i] = sentence + "; no pod was created yet"
		}
	}
}

// PodTrouble returns in a phrase the reason for which a pod is not ready; empty when it is.
func PodTrouble(p *corev1.Pod) string {
	name := "pod " + p.Name
	if p.Spec.NodeName != "" {
		name += " on " + p.Spec.NodeName
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(fmt.Sprintf("%s: container %s: %s: %s", name, c.Name, w.Reason, w.Message), ": ")
		}
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("%s: container %s exited with %d (%s)", name, c.Name, t.ExitCode, t.Reason)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("%s is not scheduled: %s", name, c.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
			return strings.TrimSuffix(fmt.Sprintf("%s is not ready: %s %s", name, c.Reason, c.Message), " ")
		}
	}
	return ""
}
