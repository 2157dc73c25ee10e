package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

const namespace = "gpufabric-system"

// cluster is an API server in memory, a reconciler on it, and a count of what that writes.
type cluster struct {
	client.Client
	t          *testing.T
	reconciler *Reconciler
	now        time.Time
	writes     []string
	// refuse, if set, answers writes instead of the server.
	refuse func(write string) error
	events *record.FakeRecorder
	// foreign: the CRD has another owner's schema (prune).
	foreign bool
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, now: time.Unix(1_800_000_000, 0), events: record.NewFakeRecorder(100)}
	inMemory := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1beta1.ComputeDomain{}).
		WithIndex(&v1beta1.ComputeDomain{}, byDomain, func(o client.Object) []string { return []string{string(o.GetUID())} }).
		WithIndex(&v1beta1.ComputeDomain{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).
		WithIndex(&corev1.Node{}, byDomain, domainsOfNode).
		WithIndex(&corev1.Node{}, byClique, func(o client.Object) []string { return []string{o.GetLabels()[v1beta1.LabelClique]} }).
		WithIndex(&corev1.Pod{}, byDomain, labelIndex).
		WithIndex(&resourceapi.ResourceClaimTemplate{}, byDomain, labelIndex).Build()
	c.Client = inMemory
	note := func(verb string, o client.Object) error {
		write := fmt.Sprintf("%s %T %s", verb, o, o.GetName())
		if c.refuse != nil {
			if err := c.refuse(write); err != nil {
				return err
			}
		}
		c.writes = append(c.writes, write)
		return nil
	}
	counted := interceptor.NewClient(inMemory, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := note("create", o); err != nil {
				return err
			}
			return w.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := note("delete", o); err != nil {
				return err
			}
			return w.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := note("patch", o); err != nil {
				return err
			}
			return w.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := note("patch "+sub, o); err != nil {
				return err
			}
			err := w.SubResource(sub).Patch(ctx, o, p, opts...)
			if domain, is := o.(*v1beta1.ComputeDomain); is && c.foreign && err == nil {
				prune(&domain.Status)
				err = w.Status().Update(ctx, domain)
			}
			return err
		},
	})
	c.reconciler = newReconciler(counted, inMemory, c.events, Settings{
		Namespace: namespace, Image: "image", ImagePullPolicy: "IfNotPresent", DaemonServiceAccount: "imex",
	})
	c.reconciler.now = func() time.Time { return c.now }
	return c
}

// settle reconciles until the reconciler asks for no other run within a minute.
func (c *cluster) settle(uid types.UID) {
	c.t.Helper()
	for range 20 {
		result, err := c.reconciler.Reconcile(c.t.Context(), uid)
		if err != nil {
			c.t.Fatal(err)
		}
		if result.RequeueAfter == 0 || result.RequeueAfter > time.Minute {
			return
		}
		c.now = c.now.Add(result.RequeueAfter)
	}
}

func (c *cluster) domain(name string) *v1beta1.ComputeDomain {
	c.t.Helper()
	domain := &v1beta1.ComputeDomain{}
	if err := c.Get(c.t.Context(), client.ObjectKey{Namespace: "user", Name: name}, domain); err != nil {
		c.t.Fatal(err)
	}
	return domain
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func newDomain(name string, numNodes int) *v1beta1.ComputeDomain {
	domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{
		Namespace: "user", Name: name, Generation: 1, UID: types.UID("0f1c5d5e-9a5b-4f6e-8c39-" + fmt.Sprintf("%012x", name[0])),
	}}
	domain.Spec.NumNodes = numNodes
	domain.Spec.Channel.ResourceClaimTemplate.Name = name + "-channel"
	domain.Spec.Channel.AllocationMode = v1beta1.AllocationModeSingle
	return domain
}

// newReadyDomain is the domain d with these nodes, whose daemons are all ready.
func newReadyDomain(t *testing.T, nodes ...string) (*cluster, *v1beta1.ComputeDomain) {
	t.Helper()
	d := newDomain("d", len(nodes))
	c := newCluster(t, d)
	c.settle(d.UID)
	for i, node := range nodes {
		c.join(d, node, fmt.Sprintf("10.0.0.%d", i+1), isReady)
	}
	c.settle(d.UID)
	return c, d
}

// join makes a node part of a domain with a daemon in the given state.
func (c *cluster) join(domain *v1beta1.ComputeDomain, name, address string, state podState) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		v1beta1.LabelComputeDomain: string(domain.UID), v1beta1.LabelClique: clique,
	}}}
	if err := c.Create(c.t.Context(), node); err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
	pod := podOn(name, address, state)
	pod.Namespace, pod.Labels = namespace, domainLabels(domain.UID)
	_ = c.Delete(c.t.Context(), pod.DeepCopy())
	c.must(c.Create(c.t.Context(), &pod))
}

func TestReconcilerMakesTemplatesAndDaemons(t *testing.T) {
	d := newDomain("d", 2)
	c := newCluster(t, d)
	c.settle(d.UID)
	want := []string{
		"patch *v1beta1.ComputeDomain d",
		"create *v1.ResourceClaimTemplate imex-daemon-" + string(d.UID),
		"create *v1.DaemonSet imex-daemon-" + string(d.UID),
		"create *v1.ResourceClaimTemplate d-channel",
		"patch status *v1beta1.ComputeDomain d",
	}
	if diff := cmp.Diff(want, c.writes); diff != "" {
		t.Errorf("writes (-want +got)\n%s", diff)
	}
	var template resourceapi.ResourceClaimTemplate
	c.must(c.Get(t.Context(), client.ObjectKey{Namespace: "user", Name: "d-channel"}, &template))
	request := template.Spec.Spec.Devices.Requests[0]
	config, err := v1beta1.Decode(template.Spec.Spec.Devices.Config[0].Opaque.Parameters.Raw)
	if err != nil {
		t.Fatal(err)
	}
	channel, ok := config.(*v1beta1.ComputeDomainChannelConfig)
	if !ok || channel.DomainID != string(d.UID) || channel.AllocationMode != v1beta1.AllocationModeSingle ||
		request.Exactly.DeviceClassName != computedomain.ChannelClass {
		t.Errorf("request %+v with config %+v", request, config)
	}
	var daemons appsv1.DaemonSet
	c.must(c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: daemonName(d.UID)}, &daemons))
	spec := daemons.Spec.Template.Spec
	if spec.NodeSelector[v1beta1.LabelComputeDomain] != string(d.UID) || spec.Tolerations[0].Operator != corev1.TolerationOpExists ||
		daemons.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("DaemonSet %+v", daemons.Spec)
	}
}

func TestReconcilerFormsEighteenNodesInFewWrites(t *testing.T) {
	d := newDomain("d", 18)
	c := newCluster(t, d)
	c.settle(d.UID)
	// Every node's daemon gets its address, then every one is ready, in 10 ms steps: about what a rack does.
	step := func(name, address string, state podState) {
		c.join(d, name, address, state)
		c.now = c.now.Add(10 * time.Millisecond)
		_, err := c.reconciler.Reconcile(t.Context(), d.UID)
		c.must(err)
	}
	for i := range 18 {
		step(fmt.Sprintf("node-%02d", i), fmt.Sprintf("10.0.0.%d", i+1), starting)
	}
	for i := range 18 {
		step(fmt.Sprintf("node-%02d", i), fmt.Sprintf("10.0.0.%d", i+1), isReady)
	}
	domain := c.domain("d")
	if domain.Status.Status != v1beta1.Ready || len(domain.Status.Nodes) != 18 {
		t.Fatalf("status %s with %d nodes right after the last daemon was ready", domain.Status.Status, len(domain.Status.Nodes))
	}
	// 18 labels are the node plugins' to write; three writes a node are the aim.
	if len(c.writes)+18 > 3*18 {
		t.Errorf("%d writes by the controller: %s", len(c.writes), strings.Join(c.writes, ", "))
	}
	if event := <-c.events.Events; !strings.Contains(event, "IMEX ready on 18 of 18 nodes") {
		t.Errorf("event %q", event)
	}
}

func TestReconcilerDoesNotWriteToASettledDomain(t *testing.T) {
	c, d := newReadyDomain(t, "a")
	before := len(c.writes)
	c.settle(d.UID)
	if len(c.writes) != before {
		t.Errorf("wrote %v", c.writes[before:])
	}
}

func TestReconcilerKeepsTheIndexOfALostNode(t *testing.T) {
	c, d := newReadyDomain(t, "a", "b")
	c.join(d, "a", "10.0.0.1", starting)
	_, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if got := c.domain("d").Status; got.Status != v1beta1.NotReady || !strings.Contains(got.Conditions[0].Message, "waiting for a (") {
		t.Errorf("after the loss: %+v", got)
	}
	c.join(d, "a", "10.0.0.7", isReady)
	c.settle(d.UID)
	want := entry("a", "10.0.0.7", clique, 0, v1beta1.Ready)
	if got := c.domain("d").Status; got.Status != v1beta1.Ready || !samePlace(&got.Nodes[0], &want) || got.Nodes[0].Status != v1beta1.Ready {
		t.Errorf("after its return: %+v", got)
	}
}

func TestReconcilerReportsATakenTemplateName(t *testing.T) {
	d := newDomain("d", 1)
	other := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "d-channel",
		Labels: map[string]string{"mine": "yes"}}}
	c := newCluster(t, d, other)
	result, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	got := c.domain("d").Status.Conditions[0]
	if got.Reason != reasonTaken || !strings.Contains(got.Message, "d-channel") || result.RequeueAfter == 0 {
		t.Errorf("condition %+v, again in %s", got, result.RequeueAfter)
	}
	c.must(c.Delete(t.Context(), other))
	c.settle(d.UID)
	if got := c.domain("d").Status.Conditions[0]; got.Reason != reasonJoining {
		t.Errorf("after the name was free: %+v", got)
	}
}

func TestReconcilerDoesNotWriteToADomainWithoutNodes(t *testing.T) {
	d := newDomain("d", 1)
	c := newCluster(t, d)
	c.settle(d.UID)
	c.writes = nil
	result, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if len(c.writes) > 0 || result.RequeueAfter != 0 {
		t.Errorf("wrote %v, comes again in %s", c.writes, result.RequeueAfter)
	}
}

// The controller may see a creation and an immediate deletion as one event, and then still believes that the object exists.
func TestReconcilerMakesChildrenAgainThatWereDeletedEarly(t *testing.T) {
	d := newDomain("d", 1)
	c := newCluster(t, d)
	c.settle(d.UID)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "d-channel"}}
	c.must(c.Delete(t.Context(), template))
	c.reconciler.memory.made(d.UID, fmt.Sprintf("%T d-channel", template), c.now)
	c.settle(d.UID)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(template), template); err != nil {
		t.Errorf("the template is not back: %v", err)
	}
}

func TestDeletedDomainIsRemovedCompletely(t *testing.T) {
	d, other := newDomain("d", 1), newDomain("e", 1)
	c := newCluster(t, d, other)
	c.settle(d.UID)
	c.settle(other.UID)
	c.join(d, "a", "10.0.0.1", isReady)
	c.join(other, "b", "10.0.0.2", isReady)
	c.settle(d.UID)
	c.writes = nil
	c.must(c.Delete(t.Context(), c.domain("d")))
	c.now = time.Now() // by which the client in memory stamps the deletion
	_, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	want := []string{
		"delete *v1.ResourceClaimTemplate d-channel", "delete *v1.ResourceClaimTemplate imex-daemon-" + string(d.UID),
		"delete *v1.DaemonSet imex-daemon-" + string(d.UID), "patch *v1.PartialObjectMetadata a",
	}
	if diff := cmp.Diff(want, c.writes); diff != "" {
		t.Errorf("writes (-want +got)\n%s", diff)
	}
	if !slices.Contains(c.domain("d").Finalizers, computedomain.Finalizer) {
		t.Error("the finalizer is gone while a daemon runs")
	}
	c.must(c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "imex-a"}}))
	_, err = c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(d), d); !apierrors.IsNotFound(err) {
		t.Errorf("the domain is still there: %v", err)
	}
	var node corev1.Node
	c.must(c.Get(t.Context(), client.ObjectKey{Name: "a"}, &node))
	if node.Labels[v1beta1.LabelComputeDomain] != "" || node.Labels[v1beta1.LabelClique] != clique {
		t.Errorf("labels of its node %v", node.Labels)
	}
	c.must(c.Get(t.Context(), client.ObjectKey{Name: "b"}, &node))
	if node.Labels[v1beta1.LabelComputeDomain] != string(other.UID) {
		t.Errorf("labels of the other domain's node %v", node.Labels)
	}
}

func TestReconcilerReportsARefusedDeletion(t *testing.T) {
	d := newDomain("d", 1)
	c := newCluster(t, d)
	c.now = time.Now().Add(-time.Hour) // the client in memory stamps the deletion by its own clock
	c.settle(d.UID)
	c.join(d, "a", "10.0.0.1", isReady)
	c.settle(d.UID)
	c.must(c.Delete(t.Context(), c.domain("d")))
	c.refuse = func(write string) error {
		if strings.HasPrefix(write, "patch *v1.PartialObjectMetadata") {
			return apierrors.NewForbidden(corev1.Resource("nodes"), "a", fmt.Errorf("a policy of the cluster's"))
		}
		return nil
	}
	for _, step := range []struct {
		age      time.Duration
		reported bool
	}{{0, false}, {reportDeletionAfter + time.Second, true}} {
		c.now = time.Now().Add(step.age)
		if _, err := c.reconciler.Reconcile(t.Context(), d.UID); err == nil {
			t.Error("no error, so nobody tries again")
		}
		got := c.domain("d").Status.Conditions[0]
		if reported := got.Reason == reasonDeleting && strings.Contains(got.Message, "node a") &&
			strings.Contains(got.Message, "a policy of the cluster's"); reported != step.reported {
			t.Errorf("after %s: %+v", step.age, got)
		}
	}
}

func TestReconcilerRemovesOrphans(t *testing.T) {
	d := newDomain("d", 1)
	c := newCluster(t, d)
	c.settle(d.UID)
	c.join(d, "a", "10.0.0.1", isReady)
	gone := c.domain("d")
	gone.Finalizers = nil // somebody lost patience
	c.must(c.Update(t.Context(), gone))
	c.must(c.Delete(t.Context(), gone))
	c.settle(d.UID)
	var templates resourceapi.ResourceClaimTemplateList
	c.must(c.List(t.Context(), &templates))
	var node corev1.Node
	c.must(c.Get(t.Context(), client.ObjectKey{Name: "a"}, &node))
	if len(templates.Items) != 0 || node.Labels[v1beta1.LabelComputeDomain] != "" {
		t.Errorf("left: %d templates, node labels %v", len(templates.Items), node.Labels)
	}
}

func TestReconcilerEndsADomainDespiteADaemonOnADeadNode(t *testing.T) {
	d := newDomain("d", 1)
	c := newCluster(t, d)
	c.settle(d.UID)
	c.join(d, "a", "10.0.0.1", isReady)
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: namespace, Name: "imex-a"}
	c.must(c.Get(t.Context(), key, pod))
	pod.Finalizers = []string{"test/kubelet"} // a kubelet that does not answer
	c.must(c.Update(t.Context(), pod))
	c.must(c.Delete(t.Context(), pod))
	c.must(c.Delete(t.Context(), c.domain("d")))
	c.now = time.Now() // by which the client in memory stamped the deletion
	_, err := c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	c.domain("d") // still there
	c.now = c.now.Add(lostAfter + time.Second)
	_, err = c.reconciler.Reconcile(t.Context(), d.UID)
	c.must(err)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(d), d); !apierrors.IsNotFound(err) {
		t.Errorf("the domain is still there: %v", err)
	}
}

// A controller that dies before any of its writes must reach the same result after its restart.
func TestReconcilerConvergesWhenKilledAtAnyWrite(t *testing.T) {
	killed := apierrors.NewInternalError(fmt.Errorf("killed"))
	d := newDomain("d", 1)
	for write := range 5 {
		t.Run(fmt.Sprintf("before write %d", write), func(t *testing.T) {
			c := newCluster(t, newDomain("d", 1))
			c.refuse = func(string) error {
				if len(c.writes) == write {
					return killed
				}
				return nil
			}
			if _, err := c.reconciler.Reconcile(t.Context(), d.UID); err == nil {
				t.Fatal("nothing failed")
			}
			c.refuse = nil
			c.reconciler.memory = memory{}
			c.join(d, "a", "10.0.0.1", isReady)
			c.settle(d.UID)
			if got := c.domain("d").Status; got.Status != v1beta1.Ready {
				t.Errorf("status %+v", got)
			}
		})
	}
}
