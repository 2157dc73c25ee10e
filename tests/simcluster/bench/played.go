package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	labelClique   = "nvidia.com/gpu.clique"
	labelDomain   = "resource.nvidia.com/computeDomain"
	labelMember   = "computedomain.gpufabric.io/"
	labelChannels = "gpufabric.io/imex-channels"
	// channelsOfNode is what the driver makes by default (NVreg_ImexChannelCount of open-gpu-kernel-modules).
	channelsOfNode = "2048"
	domainDriver   = "compute-domain.nvidia.com"
	channelClass   = "compute-domain-default-channel.nvidia.com"
)

// played are nodes that are objects only. A player writes for their plugins, their IMEX daemons and Kubernetes' controllers, for compute
// domains in clique mode.
type played struct {
	client kubernetes.Interface
	racks  [][]string

	mu sync.Mutex
	// byDomain are the nodes that a domain's pods are on, by the name of the domain's claim template.
	byDomain map[string][]string
	uids     map[string]string
	// labelled is when the last node of a domain got its label.
	labelled map[string]time.Time
	busy     errgroup.Group
	failed   error
}

func nodeName(rack, slot int) string { return fmt.Sprintf("rack-%03d-node-%02d", rack, slot) }

// newPlayed makes that many nodes, in racks of a clique each.
func newPlayed(ctx context.Context, client kubernetes.Interface, nodes int) (*played, error) {
	p := &played{client: client, byDomain: map[string][]string{}, uids: map[string]string{}, labelled: map[string]time.Time{}}
	p.busy.SetLimit(creators)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for rack := range nodes / RackSize {
		var names []string
		for slot := range RackSize {
			names = append(names, nodeName(rack, slot))
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(rack, slot), Labels: map[string]string{
				corev1.LabelHostname: nodeName(rack, slot), labelClique: cliqueName(rack), labelChannels: channelsOfNode,
			}}}
			group.Go(func() error {
				_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
				return err
			})
		}
		p.racks = append(p.racks, names)
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("make the nodes: %w", err)
	}
	return p, nil
}

// cliqueName is as NVML has it: the UUID of the cluster and the clique's number.
func cliqueName(rack int) string {
	return fmt.Sprintf("69a19a31-f41c-45a5-8245-%012x.%d", rack+1, 32766)
}

// play follows what the controller makes, until ctx ends, and returns at once. The returned function waits for the end and reports what
// failed.
func (p *played) play(ctx context.Context) (wait func() error, err error) {
	var watches sync.WaitGroup
	sets := cache.NewFilteredListWatchFromClient(p.client.AppsV1().RESTClient(), "daemonsets", system, func(o *metav1.ListOptions) {
		o.LabelSelector = labelDomain
	})
	templates := cache.NewListWatchFromClient(p.client.ResourceV1().RESTClient(), "resourceclaimtemplates", namespace, fields.Everything())
	for _, source := range []cache.InformerOptions{
		{ListerWatcher: sets, ObjectType: &appsv1.DaemonSet{}, Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) {
				if set, ok := object.(*appsv1.DaemonSet); ok {
					p.busy.Go(func() error { return p.note(p.daemons(ctx, set)) })
				}
			},
		}},
		{ListerWatcher: templates, ObjectType: &resourceapi.ResourceClaimTemplate{}, Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) {
				if template, ok := object.(*resourceapi.ResourceClaimTemplate); ok {
					p.busy.Go(func() error { return p.note(p.join(ctx, template)) })
				}
			},
		}},
	} {
		_, informer := cache.NewInformerWithOptions(source)
		watches.Go(func() { informer.RunWithContext(ctx) })
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil, context.Cause(ctx)
		}
	}
	return func() error {
		watches.Wait()
		_ = p.busy.Wait() // noted
		return p.err()
	}, nil
}

// note keeps the first failure that is not the end of the measurement.
func (p *played) note(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.failed == nil {
			p.failed = err
		}
	}
	return nil
}

func (p *played) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// daemons plays Kubernetes' DaemonSet controller and the nodes' kubelets for the IMEX daemons of a clique: a pod on each of its nodes,
// which gets an address and is ready.
func (p *played) daemons(ctx context.Context, set *appsv1.DaemonSet) error {
	nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ // from the API server's cache
		LabelSelector: labels.Set(set.Spec.Template.Spec.NodeSelector).String(), ResourceVersion: "0",
	})
	if err != nil {
		return fmt.Errorf("find the nodes of DaemonSet %s: %w", set.Name, err)
	}
	for i := range nodes.Items {
		node := nodes.Items[i].Name
		var rack, slot int
		if _, err := fmt.Sscanf(node, "rack-%d-node-%d", &rack, &slot); err != nil {
			return fmt.Errorf("node %s is none of this benchmark: %w", node, err)
		}
		pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
		pod.Namespace, pod.Name = system, "imex-"+node
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
		pod.Spec.NodeName = node
		made, err := p.client.CoreV1().Pods(system).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make the IMEX daemon of node %s: %w", node, err)
		}
		now := metav1.Now()
		address := fmt.Sprintf("127.%d.%d.%d", 64+rack/250, rack%250, slot+1)
		made.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, StartTime: &now,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, Ready: true, Image: pod.Spec.Containers[0].Image,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}},
		}
		if _, err := p.client.CoreV1().Pods(system).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("make the IMEX daemon of node %s ready: %w", node, err)
		}
	}
	return nil
}

// expect says on which nodes the pods of a domain are, before it is made.
func (p *played) expect(template string, nodes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byDomain[template] = nodes
}

// claimTemplate is one such as the controller makes for a domain, which there is not.
func claimTemplate(name string) *resourceapi.ResourceClaimTemplate {
	config := fmt.Sprintf(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": %q}`, name)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{labelDomain: name}}}
	template.Spec.Spec.Devices = resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "channel", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: channelClass}}},
		Config: []resourceapi.DeviceClaimConfiguration{{Requests: []string{"channel"}, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: domainDriver, Parameters: runtime.RawExtension{Raw: []byte(config)}}}}},
	}
	return template
}

// join plays what follows on each node when a domain's claim template is there: a pod's claim, allocated and reserved, and the node
// plugin's label.
func (p *played) join(ctx context.Context, template *resourceapi.ResourceClaimTemplate) error {
	uid := template.Labels[labelDomain]
	p.mu.Lock()
	nodes := p.byDomain[template.Name]
	p.uids[template.Name] = uid
	p.mu.Unlock()
	for _, node := range nodes {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: template.Name + "-" + node,
			Annotations: template.Spec.Annotations}, Spec: *template.Spec.Spec.DeepCopy()}
		made, err := p.client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make a claim of node %s: %w", node, err)
		}
		share := made.UID
		var configs []resourceapi.DeviceAllocationConfiguration // the scheduler copies them
		for _, config := range claim.Spec.Devices.Config {
			configs = append(configs, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim,
				Requests: config.Requests, DeviceConfiguration: config.DeviceConfiguration})
		}
		made.Status = resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "channel", Driver: domainDriver, Pool: node + "-compute-domain",
					Device: "channel-0", ShareID: &share}},
				Config: configs,
			}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: template.Name + "-" + node, UID: made.UID}},
		}
		if _, err := p.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("allocate the claim of node %s: %w", node, err)
		}
		if err := p.label(ctx, node, uid, true); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.labelled[template.Name] = time.Now()
	return nil
}

// label is the node plugin's write: it puts a domain's label on its node, or takes it off.
func (p *played) label(ctx context.Context, node, uid string, member bool) error {
	var value any
	if member {
		value = ""
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{labelMember + uid: value}}})
	if err != nil {
		return err
	}
	if _, err := p.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", node, err)
	}
	return nil
}

// end plays the end of a domain's pods on all nodes: their claims go, and with these the labels.
func (p *played) end(ctx context.Context, template string) error {
	p.mu.Lock()
	nodes, uid := p.byDomain[template], p.uids[template]
	p.mu.Unlock()
	for _, node := range nodes {
		if err := p.label(ctx, node, uid, false); err != nil {
			return err
		}
		name := template + "-" + node
		err := p.client.ResourceV1().ResourceClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete claim %s: %w", name, err)
		}
	}
	return nil
}

// lastLabel is when the last node of a domain got its label; zero: not yet.
func (p *played) lastLabel(template string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.labelled[template]
}
