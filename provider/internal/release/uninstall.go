package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-log/tflog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apitypes "k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/provider/internal/domain"
	"gpufabric.io/provider/internal/object"
)

// Removal describes how much an uninstall removes.
type Removal struct {
	CRDs bool // also remove the CRDs that Helm would leave
	// Patience is how long objects that are not being deleted may prevent the uninstall before it gives up. In one `terraform destroy` the
	// objects and the drivers go at the same time, so it waits for a blocker as long as there is progress.
	Patience time.Duration
}

// DefaultPatience is used where Removal.Patience is zero.
const DefaultPatience = 20 * time.Second

// Uninstall removes a release in the order that leaves nothing stuck. First it waits until no custom object and no running pod's
// claim needs the drivers. Then it removes the release, its pods, the drivers' ResourceSlices, the CRDs, and the namespace if the
// release created it. Notes are things left on purpose. A *BlockedError names the objects that prevent the uninstall; nothing was removed
// then. Another release of the name than the record's is left alone: *ReplacedError.
func (m *Manager) Uninstall(ctx context.Context, name string, record Record, removal Removal, hooks time.Duration) (
	notes []string, err error) {
	last, err := m.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	if last == nil {
		return m.removeNamespace(ctx, name)
	}
	if !record.Holds(last) {
		return nil, &ReplacedError{last}
	}
	ctx, unlock, err := m.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer func() { err = lockLost(ctx, err) }()
	removed, left, err := last.customResources()
	if err != nil {
		return nil, err
	}
	doomed := removed
	if removal.CRDs {
		doomed = slices.Concat(removed, left)
	}
	patience := removal.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	drivers := last.drivers()
	if err := m.awaitUnblocked(ctx, doomed, drivers, patience); err != nil {
		return nil, err
	}
	if slices.Contains(doomed, domain.Kind.CRD()) {
		if err := m.retireCliques(ctx); err != nil {
			return nil, err
		}
	}
	if err := m.uninstallHelm(ctx, name, hooks); err != nil {
		return nil, fmt.Errorf("uninstall release %s: %w", name, err)
	}
	if err := m.awaitPodsGone(ctx, last); err != nil {
		return nil, err
	}
	if err := m.removeSlices(ctx, drivers); err != nil {
		notes = append(notes, fmt.Sprintf("ResourceSlices of the removed drivers may be left: %v", err))
	}
	if err := m.cleanNodes(ctx, last.writtenOnNodes()); err != nil {
		notes = append(notes, fmt.Sprintf("Nodes may still carry labels and annotations of the removed drivers: %v", err))
	}
	if removal.CRDs {
		if err := m.removeCRDs(ctx, slices.Concat(left, removed)); err != nil {
			return notes, err
		}
	} else if len(left) > 0 {
		notes = append(notes, "CustomResourceDefinitions kept, because of remove_crds = false: "+strings.Join(left, ", "))
	}
	more, err := m.removeNamespace(ctx, name)
	return append(notes, more...), err
}

// knownDrivers are the DRA drivers of this project.
var knownDrivers = []string{"compute-domain.nvidia.com", "gpu.nvidia.com", "rdma.gpufabric.io"}

// drivers are the DRA drivers that the release runs, by whether its manifest mentions them: another product may serve the others.
func (r *Release) drivers() []string {
	var list []string
	for _, d := range knownDrivers {
		if strings.Contains(r.Manifest, d) {
			list = append(list, d)
		}
	}
	return list
}

// awaitPodsGone waits until the pods of the release's workloads have ended: their preStop work needs the service accounts and CRDs
// that go next, and a namespace cannot go before them.
func (m *Manager) awaitPodsGone(ctx context.Context, r *Release) error {
	list, err := workloads(r)
	if err != nil {
		return err
	}
	for _, w := range list {
		for {
			pods, err := m.podsOf(ctx, w)
			if err != nil {
				return err
			}
			if len(pods) == 0 {
				break
			}
			tflog.Info(ctx, "waiting for pods to end", map[string]any{"workload": w.String(), "pods": len(pods)})
			pod := pods[0]
			if _, err := object.NewStore(m.client, podKind).Wait(ctx, object.Key{Namespace: pod.Namespace, Name: pod.Name},
				object.Gone); err != nil {
				return fmt.Errorf("%d pods of %s do not end, among them %s/%s on node %s; `kubectl describe pod` shows the reason: %w",
					len(pods), w, pod.Namespace, pod.Name, pod.Spec.NodeName, err)
			}
		}
	}
	return nil
}

var podKind = object.Kind{Version: "v1", Name: "Pod", Plural: "pods", Namespaced: true}

// removeSlices deletes the ResourceSlices that the drivers published: the kubelet does so too, but half a minute later.
func (m *Manager) removeSlices(ctx context.Context, drivers []string) error {
	var errs []error
	for _, d := range drivers {
		err := m.client.Typed.ResourceV1().ResourceSlices().DeleteCollection(
			ctx,
			metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: "spec.driver=" + d},
		)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// onNodes are labels and annotations of Node objects.
type onNodes struct{ labels, annotations []string }

// writtenOnNodes lists the labels and annotations that the release's node plugins write on their nodes. A plugin that ends cannot
// distinguish an uninstall from an upgrade, so it leaves them.
func (r *Release) writtenOnNodes() onNodes {
	var written onNodes
	if slices.Contains(r.drivers(), "compute-domain.nvidia.com") {
		written.labels = []string{v1beta1.LabelClique, v1beta1.LabelComputeDomain, "gpufabric.io/imex-channels", "gpufabric.io/host-imex"}
	}
	if strings.Contains(r.Manifest, "gpufabric-vgpu-plugin") {
		written.annotations = []string{"volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake", "vgpu.gpufabric.io/unit"}
	}
	return written
}

// off is the merge patch that removes it from a node, nil where the node has none of it.
func (w onNodes) off(node *corev1.Node) map[string]any {
	patch := map[string]any{}
	for field, keys := range map[string][]string{"labels": w.labels, "annotations": w.annotations} {
		have := node.Labels
		if field == "annotations" {
			have = node.Annotations
		}
		nulls := map[string]any{}
		for _, key := range keys {
			if _, ok := have[key]; ok {
				nulls[key] = nil
			}
		}
		if len(nulls) > 0 {
			patch[field] = nulls
		}
	}
	if len(patch) == 0 {
		return nil
	}
	return map[string]any{"metadata": patch}
}

// cleanNodes removes the drivers' labels and annotations from the nodes.
func (m *Manager) cleanNodes(ctx context.Context, written onNodes) error {
	if len(written.labels)+len(written.annotations) == 0 {
		return nil
	}
	nodes, err := m.client.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range nodes.Items {
		change := written.off(&nodes.Items[i])
		if change == nil {
			continue
		}
		patch, err := json.Marshal(change)
		if err != nil {
			return err
		}
		_, err = m.client.Typed.CoreV1().Nodes().Patch(ctx, nodes.Items[i].Name, apitypes.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeNamespace deletes the manager's namespace if a release of this name created it and it has no other user.
func (m *Manager) removeNamespace(ctx context.Context, name string) (notes []string, err error) {
	store := object.NewStore(m.client, namespaces)
	key := object.Key{Name: m.namespace}
	ns, err := store.Get(ctx, key)
	if err != nil || ns == nil || ns.GetAnnotations()[releaseAnnotation] != m.namespace+"/"+name {
		return nil, err
	}
	lodgers, err := m.lodgers(ctx)
	if err != nil {
		return nil, err
	}
	if len(lodgers) > 0 {
		return []string{
			fmt.Sprintf(
				"Namespace %s is kept, since others use it: %s. Delete it by hand once they are gone.",
				m.namespace,
				strings.Join(lodgers, ", "),
			),
		}, nil
	}
	if last, err := store.Delete(ctx, key, object.RecordOf(ns)); err != nil {
		if last != nil {
			return nil, fmt.Errorf("namespace %s was not removed: %s: %w", m.namespace, namespaceTrouble(last), err)
		}
		return nil, fmt.Errorf("delete namespace %s: %w", m.namespace, err)
	}
	return nil, nil
}

// lodgers lists others' objects in the namespace that must not be lost: pods and volumes.
func (m *Manager) lodgers(ctx context.Context) ([]string, error) {
	var list []string
	pods, err := m.client.Typed.CoreV1().Pods(m.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		list = append(list, "pod "+p.Name)
	}
	volumes, err := m.client.Typed.CoreV1().PersistentVolumeClaims(m.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, v := range volumes.Items {
		list = append(list, "volume claim "+v.Name)
	}
	return list, nil
}

// namespaceTrouble returns the reason for which a namespace is still terminating.
func namespaceTrouble(ns *unstructured.Unstructured) string {
	namespace, err := object.Read[corev1.Namespace](ns)
	if err != nil {
		return err.Error()
	}
	var words []string
	for _, c := range namespace.Status.Conditions {
		if c.Status == corev1.ConditionTrue && c.Message != "" {
			words = append(words, c.Message)
		}
	}
	if len(words) == 0 {
		return "it is terminating and reports no reason"
	}
	return strings.Join(words, "; ")
}
