package plugin

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// agreementName is the ConfigMap's; agreementKey is the factor in it, in MiB.
const (
	agreementName = "gpufabric-vgpu-unit"
	agreementKey  = "memoryFactorMiB"
)

// agreement keeps the same unit of memory on all nodes of a cluster, in a ConfigMap. Volcano reads amounts of memory without a
// unit, so with different units a pod's request would mean different amounts on different nodes. A node that needs a larger unit
// than the present one raises it, and all nodes follow. It never shrinks: requests of waiting and running pods are in the present
// unit. Where Namespace is empty, each node has its own.
type agreement struct {
	Client    kubernetes.Interface
	Namespace string
}

// The pauses between failed tries: the API server is away, or another node was faster.
const firstRetry, lastRetry = 100 * time.Millisecond, 5 * time.Second

// Agree returns the present factor once it is at least needed; it raises it where necessary. It tries until ctx ends.
func (f agreement) Agree(ctx context.Context, needed int) (int, error) {
	if f.Namespace == "" {
		return needed, nil
	}
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		factor, err := f.raise(ctx, needed)
		if err == nil {
			return factor, nil
		}
		klog.FromContext(ctx).Info("Agreeing on a unit of memory with the other nodes failed; trying again", "after", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, fmt.Errorf("agree on a unit of memory through ConfigMap %s/%s: %w (last: %w); --gpu-memory-factor sets one without",
				f.Namespace, agreementName, context.Cause(ctx), err)
		}
	}
}

// raise makes one try. If two nodes try at once, the API server refuses the later one, which tries again.
func (f agreement) raise(ctx context.Context, needed int) (int, error) {
	maps := f.Client.CoreV1().ConfigMaps(f.Namespace)
	standing, err := maps.Get(ctx, agreementName, metav1.GetOptions{})
	if errors.IsNotFound(err) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: agreementName},
			Data: map[string]string{agreementKey: strconv.Itoa(needed)}}, metav1.CreateOptions{})
		return needed, err
	}
	if err != nil {
		return 0, err
	}
	inForce, err := parse(standing)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Writing the agreed unit of memory again")
	}
	if sharedgpus.AgreeFactor(inForce, needed) == inForce {
		return inForce, nil
	}
	changed := standing.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string]string{}
	}
	changed.Data[agreementKey] = strconv.Itoa(needed)
	_, err = maps.Update(ctx, changed, metav1.UpdateOptions{})
	return needed, err
}

func parse(m *corev1.ConfigMap) (int, error) {
	factor, err := strconv.Atoi(m.Data[agreementKey])
	if err != nil || factor < 1 || factor > 1<<20 {
		return 0, fmt.Errorf("ConfigMap %s/%s: %s %.40q, where 1 to %d MiB are allowed", m.Namespace, m.Name, agreementKey, m.Data[agreementKey],
			1<<20)
	}
	return factor, nil
}

// Follow calls changed with the present factor, now and at every change, until ctx ends.
func (f agreement) Follow(ctx context.Context, changed func(factor int)) error {
	if f.Namespace == "" {
		<-ctx.Done()
		return nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(f.Client, 0, informers.WithNamespace(f.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", agreementName).String()
		}))
	look := func(object any) {
		if m, ok := object.(*corev1.ConfigMap); ok && m.Name == agreementName {
			if factor, err := parse(m); err == nil {
				changed(factor)
			} else {
				klog.FromContext(ctx).Error(err, "Keeping the unit of memory as it is")
			}
		}
	}
	if _, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look,
		UpdateFunc: func(_, object any) { look(object) }}); err != nil {
		return fmt.Errorf("follow ConfigMap %s/%s: %w", f.Namespace, agreementName, err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	<-ctx.Done()
	return nil
}
