package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/manifests"
)

// creators is how many requests create pods at once; the API server takes some hundred a second from them.
const creators = 16

// observedDomain has the times of what happened to a domain.
type observedDomain struct {
	uid        string
	nodes      []string
	created    time.Time
	ready      time.Time
	lastDaemon time.Time // when the container of the last of its daemons was first seen running
	daemons    int
}

// observer watches a formation with this process's clock, since times in objects are whole seconds.
type observer struct {
	mu        sync.Mutex
	domains   map[string]*observedDomain // by name
	scheduled map[string]time.Time       // by pod
	running   map[string]time.Time
	daemons   map[string]bool
	changed   chan struct{}
}

// form creates a domain for each rack with a pod on each of its nodes, all at once, and waits until all domains are Ready and
// all pods run.
func (m *measurement) form(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, errors.New("not all domains formed in time"))
	defer cancel()
	racks, err := m.racks(ctx)
	if err != nil {
		return err
	}
	m.result.Racks = len(racks)
	m.result.Rounds++
	if _, err := m.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the namespace: %w", err)
	}
	o := &observer{domains: map[string]*observedDomain{}, scheduled: map[string]time.Time{}, running: map[string]time.Time{},
		daemons: map[string]bool{}, changed: make(chan struct{}, 1)}
	for i, nodes := range racks {
		o.domains[fmt.Sprintf("rack-%d", i)] = &observedDomain{nodes: nodes}
	}
	m.domains = o.domains
	watching, stop := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer stop()
	if err := o.watch(watching, &watches, m.client, m.manifests.Objects()); err != nil {
		return err
	}
	before, err := requests(ctx, m.client)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := m.create(ctx, o); err != nil {
		return err
	}
	for !o.done(m.result.Nodes) {
		select {
		case <-o.changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), o.progress())
		}
	}
	end := time.Now()
	m.result.Running = append(m.result.Running, end.Sub(begin).Seconds())
	after, err := requests(ctx, m.client)
	if err != nil {
		return err
	}
	for name, grown := range difference(after, before) {
		m.result.Requests[name] += grown
	}
	o.report(&m.result)
	now, err := m.used()
	if err != nil {
		return err
	}
	m.result.Memory = now.memory
	return m.count(ctx, begin, end)
}

// racks groups the nodes by their clique label.
func (m *measurement) racks(ctx context.Context) ([][]string, error) {
	nodes, err := m.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	byClique := map[string][]string{}
	for i := range nodes.Items {
		clique := nodes.Items[i].Labels["nvidia.com/gpu.clique"]
		if clique == "" {
			return nil, fmt.Errorf("node %s has no label nvidia.com/gpu.clique", nodes.Items[i].Name)
		}
		byClique[clique] = append(byClique[clique], nodes.Items[i].Name)
	}
	var racks [][]string
	for _, names := range byClique {
		slices.Sort(names)
		racks = append(racks, names)
	}
	slices.SortFunc(racks, slices.Compare)
	return racks, nil
}

const rackPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: bench}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  containers: [{name: rank, image: "ubuntu:22.04", resources: {claims: [{name: channel}]}}]
  resourceClaims: [{name: channel, resourceClaimTemplateName: %[3]s-channel}]
`

const rackDomain = `
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: %[1]s, namespace: bench}
spec:
  numNodes: %[2]d
  channel: {resourceClaimTemplate: {name: %[1]s-channel}}
`

func (m *measurement) create(ctx context.Context, o *observer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for name, d := range o.domains {
		group.Go(func() error {
			o.mu.Lock()
			d.created = time.Now()
			o.mu.Unlock()
			if err := m.apply(ctx, fmt.Sprintf(rackDomain, name, len(d.nodes))); err != nil {
				return err
			}
			for _, node := range d.nodes {
				if err := m.apply(ctx, fmt.Sprintf(rackPod, name+"-"+node, node, name)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (m *measurement) apply(ctx context.Context, manifest string) error {
	objects, err := manifests.Parse([]byte(manifest))
	if err != nil {
		return err
	}
	return m.manifests.Apply(ctx, namespace, objects...)
}

// watch starts watching domains, their pods and their daemons, and returns when it sees what there is.
func (o *observer) watch(ctx context.Context, running *sync.WaitGroup, client kubernetes.Interface, objects dynamic.Interface) error {
	pods := func(space string) cache.ListerWatcher {
		return cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", space, fields.Everything())
	}
	for _, source := range []cache.InformerOptions{
		{ListerWatcher: domain.In(objects, namespace), ObjectType: &unstructured.Unstructured{}, Handler: o.handler(o.sawDomain)},
		{ListerWatcher: pods(namespace), ObjectType: &corev1.Pod{}, Handler: o.handler(o.sawPod)},
		{ListerWatcher: pods(system), ObjectType: &corev1.Pod{}, Handler: o.handler(o.sawDaemon)},
	} {
		_, informer := cache.NewInformerWithOptions(source)
		running.Go(func() { informer.RunWithContext(ctx) })
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (o *observer) handler(saw func(object any, now time.Time)) cache.ResourceEventHandler {
	see := func(object any) {
		o.mu.Lock()
		saw(object, time.Now())
		o.mu.Unlock()
		select {
		case o.changed <- struct{}{}:
		default:
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }}
}

func (o *observer) sawDomain(object any, now time.Time) {
	read, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	d := o.domains[read.GetName()]
	if d == nil {
		return
	}
	d.uid = string(read.GetUID())
	if state := domain.Read(read); state.Status == domain.Ready && state.Ready == len(d.nodes) && d.ready.IsZero() {
		d.ready = now
	}
}

func (o *observer) sawPod(object any, now time.Time) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	if pod.Spec.NodeName != "" && o.scheduled[pod.Name].IsZero() {
		o.scheduled[pod.Name] = now
	}
	if pod.Status.Phase == corev1.PodRunning && o.running[pod.Name].IsZero() {
		o.running[pod.Name] = now
	}
}

func (o *observer) sawDaemon(object any, now time.Time) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Status.Phase != corev1.PodRunning || o.daemons[pod.Name] {
		return
	}
	uid := pod.Labels["resource.nvidia.com/computeDomain"]
	for _, d := range o.domains {
		if uid != "" && d.uid == uid {
			o.daemons[pod.Name] = true
			d.lastDaemon = now
			d.daemons++
		}
	}
}

func (o *observer) done(nodes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.domains {
		if d.ready.IsZero() {
			return false
		}
	}
	return len(o.running) >= nodes
}

func (o *observer) progress() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	ready := 0
	for _, d := range o.domains {
		if !d.ready.IsZero() {
			ready++
		}
	}
	return fmt.Sprintf("%d of %d domains are Ready, %d daemons and %d pods run", ready, len(o.domains), len(o.daemons), len(o.running))
}

func (o *observer) report(r *Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.domains {
		r.Domains = append(r.Domains, d.ready.Sub(d.created).Seconds())
		if d.daemons > 0 {
			r.LastDaemon = append(r.LastDaemon, max(0, d.ready.Sub(d.lastDaemon).Seconds()))
		}
	}
	var first, last time.Time
	for _, at := range o.scheduled {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	if span := last.Sub(first).Seconds(); span > 0 {
		r.PodsPerSecond = append(r.PodsPerSecond, float64(len(o.scheduled))/span)
	}
}

// deletePods deletes them one by one: a thousand in one request take longer than the API server gives a request.
func deletePods(ctx context.Context, client kubernetes.Interface) error {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range pods.Items {
		group.Go(func() error {
			err := client.CoreV1().Pods(namespace).Delete(ctx, pods.Items[i].Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete pod %s: %w", pods.Items[i].Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func deleteDomains(ctx context.Context, objects dynamic.Interface) error {
	if err := objects.Resource(domain.Resource).Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete the domains: %w", err)
	}
	return nil
}

func awaitEmpty(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface) error {
	pods := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", namespace, fields.Everything())
	if err := domain.AwaitNone(ctx, pods, &corev1.Pod{}); err != nil {
		return fmt.Errorf("wait for the pods' end: %w", err)
	}
	if err := domain.AwaitNone(ctx, domain.In(objects, namespace), &unstructured.Unstructured{}); err != nil {
		return fmt.Errorf("wait for the domains' end: %w", err)
	}
	return nil
}
