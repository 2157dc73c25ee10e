package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/observed"
)

// nodeLabels are the labels of this node's Node object that are the plugin's to set.
type nodeLabels struct {
	// known is false until the node was seen, and while it does not exist.
	known  bool
	clique string
	domain types.UID
	// channels is the node's number of IMEX channels by its label, members the domains that have one, separated by commas.
	channels, members string
	// hostIMEX is the label for the state of the node's own nvidia-imex.
	hostIMEX string
}

// domains are the domains that have a channel of the node's clique, by the labels.
func (l nodeLabels) domains() []types.UID {
	var domains []types.UID
	for uid := range strings.SplitSeq(l.members, ",") {
		if uid != "" {
			domains = append(domains, types.UID(uid))
		}
	}
	return domains
}

func (l nodeLabels) has(domain types.UID) bool { return slices.Contains(l.domains(), domain) }

// node is this node's Node object: one watch of one object, and patches of two labels.
type node struct {
	name   string
	client kubernetes.Interface
	labels observed.Value[nodeLabels]
	// pause is the request of NVIDIA's GPU operator that clients of the driver leave the node.
	pause observed.Value[drain.Pause]

	mu     sync.Mutex
	newest string // resource version of the newest state seen
}

// see takes in a state of the Node object. The answer to a patch overtakes the watch, whose older states are then passed over.
func (n *node) see(object *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, n.newest); err == nil && order < 0 {
		return
	}
	n.newest = object.ResourceVersion
	if labels := labelsOf(object); labels != n.labels.Now() {
		n.labels.Set(labels)
	}
	drain.See(&n.pause, object)
}

// follow keeps the labels current until ctx ends.
func (n *node) follow(ctx context.Context) {
	source := cache.NewListWatchFromClient(n.client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll,
		fields.OneTermEqualSelector(metav1.ObjectNameField, n.name))
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    &corev1.Node{},
		Transform:     keepMetadata,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { n.see(obj.(*corev1.Node)) },
			UpdateFunc: func(_, obj any) { n.see(obj.(*corev1.Node)) },
			DeleteFunc: func(any) { n.labels.Set(nodeLabels{}) },
		},
	})
	informer.RunWithContext(ctx)
}

func labelsOf(object *corev1.Node) nodeLabels {
	var members []string
	for _, uid := range computedomain.MemberOf(object.Labels) {
		members = append(members, string(uid))
	}
	return nodeLabels{
		known: true, clique: object.Labels[v1beta1.LabelClique], domain: types.UID(object.Labels[v1beta1.LabelComputeDomain]),
		channels: object.Labels[computedomain.LabelChannels], members: strings.Join(members, ","),
		hostIMEX: object.Labels[computedomain.LabelHostIMEX],
	}
}

// keepMetadata drops all of a Node object but its labels: the list of its images alone is tens of kilobytes.
func keepMetadata(obj any) (any, error) {
	if object, ok := obj.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: object.Name, UID: object.UID, ResourceVersion: object.ResourceVersion,
			Labels: object.Labels}}, nil
	}
	return obj, nil
}

// labelClique keeps three labels current until ctx ends: the node's clique, by its fabric; the number of its channels, where they
// are shared; and the state of the node's own nvidia-imex. It restores them when somebody else changes them or when the Node object is
// made again. While GPUs are in trouble or drained the labels stay, since running jobs do. Where GPUs disagree about their clique, the
// clique's label is removed.
func (n *node) labelClique(ctx context.Context, current *observed.Value[fabric], sharing func() (bool, <-chan struct{}),
	host *observed.Value[hostState]) {
	backoff := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 8, Cap: 30 * time.Second}
	retry := backoff
	for ctx.Err() == nil {
		now, fabricChanged := current.Get()
		service, serviceChanged := host.Get()
		shared, sharingChanged := sharing()
		labels, labelsChanged := n.labels.Get()
		var again <-chan time.Time
		if wanted := labels.differences(now, shared, service); len(wanted) > 0 {
			if err := n.patch(ctx, wanted); err != nil {
				klog.FromContext(ctx).Error(err, "Labels of the node's clique not set", "labels", wanted)
				again = time.After(retry.Step())
			} else {
				retry = backoff
			}
		}
		select {
		case <-fabricChanged:
		case <-serviceChanged:
		case <-sharingChanged:
		case <-labelsChanged:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// differences are the labels that are to be set or, where they are nil, removed.
func (l nodeLabels) differences(now fabric, shared bool, service hostState) map[string]any {
	wanted := map[string]any{}
	if !l.known {
		return wanted
	}
	channels := ""
	if shared && now.clique != "" {
		channels = strconv.Itoa(now.channelCount())
	}
	if clique, decided := cliqueLabel(now); decided && (l.clique != clique || l.channels != channels) {
		wanted[v1beta1.LabelClique] = orNil(clique)
		if l.channels != channels {
			wanted[computedomain.LabelChannels] = orNil(channels)
		}
	}
	if service.known && l.hostIMEX != service.label {
		wanted[computedomain.LabelHostIMEX] = orNil(service.label)
	}
	return wanted
}

// cliqueLabel is the label's value, or undecided.
func cliqueLabel(f fabric) (value string, decided bool) {
	return f.clique, !f.passing() && f.taint() != problemGPU && f.taint() != problemDrained
}

// orNil makes an empty label one that a merge patch removes.
func orNil(value string) any {
	if value == "" {
		return nil
	}
	return value
}

// join labels the node with a domain; no write where it is labelled so already.
func (n *node) join(ctx context.Context, domain types.UID) error {
	if n.labels.Now().domain == domain {
		return nil
	}
	return n.patch(ctx, map[string]any{v1beta1.LabelComputeDomain: string(domain)})
}

// patch sets labels.
func (n *node) patch(ctx context.Context, labels map[string]any) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return fmt.Errorf("label node %s: %w", n.name, err)
	}
	object, err := n.client.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("label node %s: %w", n.name, err)
	}
	n.see(object)
	return nil
}

// leave removes the domain's label from the node, unless the node has another domain's by now. It sends the request even where no
// label was seen: the answer to join may have been lost, and its watch be late.
func (n *node) leave(ctx context.Context, domain types.UID) error {
	if labels := n.labels.Now(); labels.domain != "" && labels.domain != domain {
		return nil
	}
	path := "/metadata/labels/" + strings.ReplaceAll(v1beta1.LabelComputeDomain, "/", "~1")
	data, err := json.Marshal([]map[string]string{
		{"op": "test", "path": path, "value": string(domain)},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("remove the label of compute domain %s from node %s: %w", domain, n.name, err)
	}
	object, err := n.client.CoreV1().Nodes().Patch(ctx, n.name, types.JSONPatchType, data, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		// The node is gone, or the test failed: it is labelled otherwise.
		return nil
	case err != nil:
		return fmt.Errorf("remove the label of compute domain %s from node %s: %w", domain, n.name, err)
	}
	n.see(object)
	return nil
}
