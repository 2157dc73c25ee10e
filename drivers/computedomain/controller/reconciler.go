package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

const (
	// Domains reconciled side by side. A pass is a look into caches and at most a few writes of some milliseconds each, so a few
	// are enough for the write limit above.
	concurrent = 8

	// byDomain is the index of objects by the domain whose label they carry, and of ComputeDomains by their UID.
	byDomain = "computeDomain"

	// byClique is the index of nodes by the clique whose label they carry.
	byClique = "clique"
)

// Reconciler creates the objects of each domain, and removes them again. A request is a domain's UID: every object of a domain
// carries it, so that the leftovers of a deleted domain are found too.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	recorder record.EventRecorder
	settings Settings
	now      func() time.Time
	memory   memory
	clocks   clocks
	survey   survey
	known    knownSeed
	features *features
	// consumers are the pods that use domains which are being deleted.
	consumers consumers
	// modes is held while a domain goes to another mode, and read-held while a clique's table of channels is written: a domain that
	// gets a channel keeps its mode.
	modes sync.RWMutex
}

func newReconciler(cached client.Client, live client.Reader, recorder record.EventRecorder, s Settings) *Reconciler {
	r := &Reconciler{client: cached, live: live, recorder: recorder, settings: s, now: time.Now}
	r.features = &features{client: cached, namespace: s.Namespace}
	r.consumers = consumers{live: live, now: func() time.Time { return r.now() }}
	r.survey = survey{reader: cached, namespace: s.Namespace, ask: newAsker().ask, now: func() time.Time { return r.now() }}
	return r
}

// setup subscribes to everything that changes a domain.
func (r *Reconciler) setup(ctx context.Context, manager ctrl.Manager) error {
	node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	indexer := manager.GetFieldIndexer()
	err := errors.Join(
		indexer.IndexField(ctx, &v1beta1.ComputeDomain{}, byDomain, func(o client.Object) []string { return []string{string(o.GetUID())} }),
		indexer.IndexField(ctx, node, byDomain, domainsOfNode),
		indexer.IndexField(ctx, node, byClique, func(o client.Object) []string { return []string{o.GetLabels()[v1beta1.LabelClique]} }),
		indexer.IndexField(ctx, &corev1.Pod{}, byDomain, labelIndex),
		indexer.IndexField(ctx, &resourceapi.ResourceClaimTemplate{}, byDomain, labelIndex),
	)
	if err != nil {
		return err
	}
	byLabel := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []types.UID {
		if uid := o.GetLabels()[v1beta1.LabelComputeDomain]; uid != "" {
			return []types.UID{types.UID(uid)}
		}
		return nil
	})
	byDomains := handler.TypedEnqueueRequestsFromMapFunc(r.concerns)
	byNode := handler.TypedEnqueueRequestsFromMapFunc(r.concernsOfNode)
	server, err := discovery.NewDiscoveryClientForConfigAndClient(manager.GetConfig(), manager.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for the API server's version: %w", err)
	}
	// Two controllers in one process (a simulation, a test) may have the same name.
	skipNameValidation := true
	building := builder.TypedControllerManagedBy[types.UID](manager).Named("computedomain")
	if r.settings.NetworkPolicies {
		building = building.Watches(&networkingv1.NetworkPolicy{}, byLabel) // one that somebody deletes is made again
	}
	return building.
		Watches(&v1beta1.ComputeDomain{}, byDomains).
		Watches(&appsv1.DaemonSet{}, byLabel).
		Watches(&resourceapi.ResourceClaimTemplate{}, byLabel).
		Watches(&corev1.Pod{}, byLabel).
		WatchesMetadata(&corev1.Node{}, byNode).
		WatchesRawSource(source.TypedFunc[types.UID](func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[types.UID]) error {
			go r.survey.run(ctx, queue.Add) // ends with the controller
			return nil
		})).
		WatchesRawSource(source.TypedFunc[types.UID](func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[types.UID]) error {
			go r.features.run(ctx, server, queue.Add) // ends with the controller
			return nil
		})).
		WithOptions(controller.TypedOptions[types.UID]{MaxConcurrentReconciles: concurrent, SkipNameValidation: &skipNameValidation}).
		Complete(r)
}

func labelIndex(o client.Object) []string {
	return []string{o.GetLabels()[v1beta1.LabelComputeDomain]}
}

// pass is one reconcile of one domain.
type pass struct {
	// domain is worked on; its status is written once, at the end.
	domain *v1beta1.ComputeDomain
	// problem, where there is one, is why the domain cannot be Ready.
	problem *metav1.Condition
	// daemons is the domain's DaemonSet, nil until it is seen.
	daemons *appsv1.DaemonSet
	// clique is the clique that the domain represents; empty for a user's.
	clique string
	// template is the content label of the domain's current daemon pods; empty where it does not matter.
	template string
	// certificates is true if the domain's daemons have certificates.
	certificates bool
	// issued is the fingerprint of the authority of the certificate that this pass issued; empty: none.
	issued string
	// authority is whether certificates can be issued; nil: not known, or there are none.
	authority *metav1.Condition
	// again, where not zero, is when to look once more though nothing may have changed.
	again time.Duration
	// shown is the status from before the pass, with the fields that the API server leaves out (recall); nil: it leaves out none.
	shown *v1beta1.ComputeDomainStatus
}

// Reconcile brings one domain a step further.
func (r *Reconciler) Reconcile(ctx context.Context, uid types.UID) (ctrl.Result, error) {
	domain, err := r.find(ctx, uid)
	if err != nil {
		return ctrl.Result{}, err
	}
	if domain == nil {
		return r.leftovers(ctx, uid)
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("computeDomain", klog.KObj(domain)))
	before := domain.Status.DeepCopy()
	shown := r.recall(domain)
	if domain.DeletionTimestamp != nil {
		return r.delete(ctx, domain)
	}
	p := &pass{domain: domain, clique: computedomain.CliqueOf(domain, r.settings.Namespace)}
	p.shown = shown
	if p.clique != "" {
		r.modes.RLock()
		defer r.modes.RUnlock()
	} else if r.state(domain).MayFollow() {
		r.modes.Lock()
		defer r.modes.Unlock()
	}
	if err := r.decideMode(ctx, p); err != nil {
		return ctrl.Result{}, err
	}
	steps := r.steps(p)
	if before.IMEX != "" && before.IMEX != domain.Status.IMEX {
		steps = nil // objects of another mode are made once the mode is recorded; the write causes another pass
	}
	var failed error
	for _, step := range steps {
		if failed = step(ctx, p); failed != nil {
			p.problem = &metav1.Condition{Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonFailed, Message: failed.Error()}
			break
		}
	}
	after, err := r.writeStatus(ctx, p, before)
	if err := errors.Join(failed, err); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: soonest(p.again, after)}, nil
}

// steps returns the steps that create the objects of a domain. They depend on whose daemons serve it.
func (r *Reconciler) steps(p *pass) []func(context.Context, *pass) error {
	steps := []func(context.Context, *pass) error{r.ensureFinalizer}
	if p.ownDaemons() {
		steps = append(steps, r.ensureDaemonTemplate, r.decideCertificates, r.ensureDaemonSet, r.ensureNetworkPolicy,
			r.keepCertificates)
	}
	if p.clique == "" {
		steps = append(steps, r.ensureWorkloadTemplate, r.checkFeatures, r.ensureOwner)
	}
	return steps
}

// soonest is the shorter of two waits, where zero means never.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// find returns the domain with a UID, or nil.
func (r *Reconciler) find(ctx context.Context, uid types.UID) (*v1beta1.ComputeDomain, error) {
	var list v1beta1.ComputeDomainList
	if err := r.client.List(ctx, &list, client.MatchingFields{byDomain: string(uid)}); err != nil {
		return nil, fmt.Errorf("find the ComputeDomain with UID %s: %w", uid, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return r.memory.newest(&list.Items[0]), nil
}

func (r *Reconciler) ensureFinalizer(ctx context.Context, p *pass) error {
	before := p.domain.DeepCopy()
	if !controllerutil.AddFinalizer(p.domain, computedomain.Finalizer) {
		return nil
	}
	if _, err := computedomain.Keep(p.domain, r.settings.Namespace); err != nil { // in one write
		return err
	}
	return r.writeMetadata(ctx, p, before, "add the finalizer")
}

// writeMetadata writes the metadata of a domain, and leaves the status that the pass has worked out so far.
func (r *Reconciler) writeMetadata(ctx context.Context, p *pass, before *v1beta1.ComputeDomain, what string) error {
	status := p.domain.Status.DeepCopy()
	if err := r.client.Patch(ctx, p.domain, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.memory.wrote(p.domain)
	p.domain.Status = *status
	return nil
}

func (r *Reconciler) ensureDaemonTemplate(ctx context.Context, p *pass) error {
	template, err := daemonTemplate(p.domain, r.settings.Namespace)
	if err != nil {
		return err
	}
	_, err = r.ensure(ctx, p, template, &resourceapi.ResourceClaimTemplate{})
	return err
}

// ensureDaemonSet makes the daemons' DaemonSet, and brings one that was made otherwise up to date: by another version of this program, or
// with other settings. Its running pods stay as they are.
func (r *Reconciler) ensureDaemonSet(ctx context.Context, p *pass) error {
	settings := r.settings
	settings.Certificates = p.certificates
	want, err := daemonSet(p.domain, settings)
	if err != nil {
		return err
	}
	if p.certificates {
		want.Annotations[annotationRenewal] = r.now().UTC().Format(time.RFC3339) // until keepCertificates has seen it
		if p.issued != "" {
			want.Annotations[annotationAuthority] = p.issued
		}
	}
	p.template = want.Spec.Template.Labels[labelTemplate]
	found := &appsv1.DaemonSet{}
	if _, err := r.ensure(ctx, p, want, found); err != nil {
		return err
	}
	if found.Name != "" && found.DeletionTimestamp == nil && found.Labels[v1beta1.LabelComputeDomain] == string(p.domain.UID) {
		p.daemons = found
	}
	// The cache gets a patch late, as it gets a new object.
	patched := "template " + p.template
	switch {
	case found.Name == "" || found.DeletionTimestamp != nil:
		return nil
	case found.Spec.Template.Labels[labelTemplate] == p.template:
		r.memory.seen(p.domain.UID, patched)
		return nil
	case r.memory.recently(p.domain.UID, patched, r.now()):
		p.again = soonest(p.again, lag)
		return nil
	}
	before := found.DeepCopy()
	found.Spec.Template, found.Spec.UpdateStrategy = want.Spec.Template, want.Spec.UpdateStrategy
	if err := r.client.Patch(ctx, found, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("update DaemonSet %s: %w", want.Name, err)
	}
	r.memory.made(p.domain.UID, patched, r.now())
	return nil
}

// ensureWorkloadTemplate makes the template that users name, unless something else has that name already.
func (r *Reconciler) ensureWorkloadTemplate(ctx context.Context, p *pass) error {
	template, err := workloadTemplate(p.domain)
	if err != nil {
		return err
	}
	holder, err := r.ensure(ctx, p, template, &resourceapi.ResourceClaimTemplate{})
	if err != nil || holder == nil {
		return err
	}
	owner := "somebody else's"
	// A template without our label is not watched, so look again. One of an earlier domain is being removed.
	again := 15 * time.Second
	if other := holder.GetLabels()[v1beta1.LabelComputeDomain]; other != "" {
		owner, again = "that of the ComputeDomain with UID "+other, time.Second
	}
	p.again = soonest(p.again, again)
	p.problem = &metav1.Condition{
		Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonTaken,
		Message: fmt.Sprintf("the namespace has a ResourceClaimTemplate %s already, and it is %s: delete it, or create the ComputeDomain with "+
			"another spec.channel.resourceClaimTemplate.name", template.Name, owner),
	}
	return nil
}

// ensure creates an object unless it exists. Where an object that is not this domain's has the name, ensure returns that object.
func (r *Reconciler) ensure(ctx context.Context, p *pass, want, found client.Object) (client.Object, error) {
	uid := p.domain.UID
	name := fmt.Sprintf("%T %s", want, want.GetName())
	key := client.ObjectKeyFromObject(want)
	err := r.client.Get(ctx, key, found)
	switch {
	case err == nil && found.GetLabels()[v1beta1.LabelComputeDomain] == string(uid):
		r.memory.seen(uid, name)
		return nil, nil
	case err == nil:
		return found, nil
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("look up %s: %w", name, err)
	case r.memory.recently(uid, name, r.now()):
		// The cache will have it soon; or it was deleted before the cache had it, for which there is no event.
		p.again = soonest(p.again, lag)
		return nil, nil
	}
	err = r.client.Create(ctx, want)
	switch {
	case err == nil:
		r.memory.made(uid, name, r.now())
		return nil, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The namespace is being deleted, and the domain with it.
		return nil, nil
	case !apierrors.IsAlreadyExists(err):
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	// The cache has only objects with the label, so any object may have the name.
	if err := r.live.Get(ctx, key, found); err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	if found.GetLabels()[v1beta1.LabelComputeDomain] == string(uid) {
		return nil, nil
	}
	return found, nil
}

// writeStatus writes the status if it has changed and the change may not wait any longer (pauseBefore). Otherwise it returns how long
// the change may still wait; zero where nothing has changed.
func (r *Reconciler) writeStatus(ctx context.Context, p *pass, before *v1beta1.ComputeDomainStatus) (time.Duration, error) {
	members, pods, err := r.members(ctx, p)
	if err != nil {
		return 0, err
	}
	needs := p.domain.Spec.NumNodes
	if p.clique != "" {
		needs = max(1, len(members)) // all that the clique has
	}
	setStatusFor(p.domain, needs, members, p.problem)
	if err := r.explainFabric(ctx, p, members); err != nil {
		return 0, err
	}
	if p.shown == nil {
		p.shown = before
	}
	gone, err := r.goneNodes(ctx, p.shown.Nodes, members)
	if err != nil {
		return 0, err
	}
	cuts, err := r.cutsOf(ctx, p)
	if err != nil {
		return 0, err
	}
	health := health{needs: needs, members: members, gone: gone, problem: p.problem, cuts: cuts, now: r.now()}
	health.setStates(p.shown.Nodes, p.domain.Status.Nodes)
	health.setConditions(p.domain)
	if err := r.setChannels(ctx, p); err != nil {
		return 0, err
	}
	summarise(p.domain)
	p.domain.Status.Summary.Why = health.firstCause(p.domain)
	r.clocks.observe(p.domain, r.now())
	if p.template != "" {
		setDaemonsCurrent(p.domain, behind(pods, p.template))
	}
	setAuthority(p.domain, p.authority)
	if err := r.keep(ctx, p); err != nil {
		return 0, err
	}
	pause, changed := pauseBefore(p.domain.Spec.NumNodes, *before, p.domain.Status)
	if p.clique != "" {
		pause = min(pause, addressPause) // domains of users wait for its table of channels
	}
	if lacking(before, p.shown) {
		pause, changed = pauseLacking(p), true
	}
	if !changed {
		return 0, nil
	}
	if left := pause - r.memory.sinceStatus(p.domain.UID, r.now()); left > 0 {
		return left, nil
	}
	old, want := p.domain.DeepCopy(), p.domain.Status.DeepCopy()
	old.Status = *before
	// New indices are made from those in the status, so a write that was made from an older status must fail.
	if err := r.client.Status().Patch(ctx, p.domain, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return 0, fmt.Errorf("write the status: %w", err)
	}
	r.memory.wrote(p.domain)
	r.memory.statusWritten(p.domain.UID, r.now())
	dropped := r.checkDropped(p.domain, want)
	r.announce(p.domain, p.shown)
	if dropped {
		return lackingPause, nil
	}
	return 0, nil
}

// observe returns the nodes that carry the domain's label, and the domain's daemon pods.
func (r *Reconciler) observe(ctx context.Context, uid types.UID) ([]metav1.PartialObjectMetadata, []corev1.Pod, error) {
	nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.client.List(ctx, &nodes, client.MatchingFields{byDomain: string(uid)}); err != nil {
		return nil, nil, fmt.Errorf("list the domain's nodes: %w", err)
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(r.settings.Namespace), client.MatchingFields{byDomain: string(uid)}); err != nil {
		return nil, nil, fmt.Errorf("list the domain's daemons: %w", err)
	}
	return nodes.Items, pods.Items, nil
}

// reportPause is the time between two Events that daemons are not connected: connections may come and go.
const reportPause = time.Minute

// announce makes an Event when a domain becomes Ready, when it no longer is, and when it loses nodes or connections between them.
func (r *Reconciler) announce(domain *v1beta1.ComputeDomain, before *v1beta1.ComputeDomainStatus) {
	degraded := meta.FindStatusCondition(domain.Status.Conditions, v1beta1.ConditionDegraded)
	if affected := slices.Contains([]string{reasonInterrupted, reasonGone}, degraded.Reason); affected &&
		!meta.IsStatusConditionTrue(before.Conditions, v1beta1.ConditionDegraded) {
		r.recorder.Event(reference(domain), corev1.EventTypeWarning, degraded.Reason, degraded.Message)
	}
	if was := meta.FindStatusCondition(before.Conditions, v1beta1.ConditionDegraded); degraded.Reason == reasonDisconnected &&
		(was == nil || was.Reason != reasonDisconnected) && r.memory.atMostEach(domain.UID, reportDisconnected, reportPause, r.now()) {
		r.recorder.Event(reference(domain), corev1.EventTypeWarning, degraded.Reason, degraded.Message)
	}
	if lost := meta.FindStatusCondition(domain.Status.Conditions, v1beta1.ConditionCertificatesRenewable); lost != nil &&
		lost.Status == metav1.ConditionFalse && !meta.IsStatusConditionFalse(before.Conditions, v1beta1.ConditionCertificatesRenewable) {
		r.recorder.Event(reference(domain), corev1.EventTypeWarning, lost.Reason, lost.Message)
	}
	condition := meta.FindStatusCondition(domain.Status.Conditions, v1beta1.ConditionReady)
	switch {
	case domain.Status.Status == before.Status:
	case domain.Status.Status == v1beta1.Ready:
		r.recorder.Event(reference(domain), corev1.EventTypeNormal, condition.Reason, condition.Message)
	case before.Status == v1beta1.Ready || !slices.Contains([]string{reasonJoining, reasonStarting}, condition.Reason):
		r.recorder.Event(reference(domain), corev1.EventTypeWarning, condition.Reason, condition.Message)
	}
}

func reference(domain *v1beta1.ComputeDomain) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1beta1.SchemeGroupVersion().String(), Kind: "ComputeDomain",
		Namespace: domain.Namespace, Name: domain.Name, UID: domain.UID,
	}
}
