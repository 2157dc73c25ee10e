package plugin

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
)

// given are the shares of a pod's containers without NRI. The API forgets a pod that is deleted by force while it runs, and without NRI
// no one else reports it after a restart.
type given struct {
	Pod       types.UID `json:"pod"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// UnitMiB is the size of the shares' units of memory.
	UnitMiB    int              `json:"unitMiB"`
	Containers []givenContainer `json:"containers"`
}

// givenContainer is one container. Shares are in the scheduler's format; the rest is that of holdings.Holder.
type givenContainer struct {
	Name   string `json:"name"`
	Shares string `json:"shares"`
	Limits string `json:"limits,omitempty"`
	Step   int    `json:"step"`
	Ends   bool   `json:"ends,omitempty"`
}

// openGiven opens the store of the pods' shares, by the pod's UID.
func openGiven(ctx context.Context, directory string) (*store.Store[given], error) {
	opened, unreadable, err := store.Open(store.Options{Directory: directory, Extension: ".json", Writer: atomicfile.Writer{}},
		store.Format[given]{Name: "gpufabric-vgpu-given", Version: 1, Check: func(name string, g given) error {
			if string(g.Pod) != name {
				return fmt.Errorf("it belongs to the pod with UID %.80q, and its name is %.80q", g.Pod, name)
			}
			return nil
		}})
	for _, file := range unreadable {
		klog.FromContext(ctx).Error(file.Err, "The record of a pod's shares is lost", "what", file.String())
	}
	return opened, err
}

// record stores the shares of a container.
func (n number) record(pod *corev1.Pod, who holdings.Holder, container string, shares []annotation.Share) error {
	g, _ := n.given.Get(string(pod.UID))
	g.Pod, g.Namespace, g.Name, g.UnitMiB = pod.UID, pod.Namespace, pod.Name, n.hook.SharedGPUs().Factor
	one := givenContainer{Name: container, Shares: annotation.FormatShares([][]annotation.Share{shares}), Limits: who.Limits, Step: who.Step,
		Ends: who.Ends}
	if slices.Contains(g.Containers, one) {
		return nil
	}
	g.Containers = append(slices.DeleteFunc(slices.Clone(g.Containers), func(c givenContainer) bool { return c.Name == container }), one)
	return n.given.Put(string(pod.UID), g)
}

// pod returns the pod as far as it is known.
func (g given) pod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: g.Name, UID: g.Pod}}
	for _, container := range g.Containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: container.Name})
	}
	return pod
}

// restore books the shares of pods that the API no longer has, and frees them when their last process has ended. live are the UIDs of the
// pods that the API has.
func (n number) restore(ctx context.Context, live map[string]bool) {
	for _, g := range n.given.All() {
		if live[string(g.Pod)] {
			continue
		}
		pod := g.pod()
		for _, container := range g.Containers {
			shares, err := annotation.ParseShares(container.Shares)
			if err != nil || len(shares) != 1 {
				klog.FromContext(ctx).Error(err, "A share of an earlier run is unreadable", "pod", klog.KObj(pod), "container", container.Name)
				continue
			}
			for i := range shares[0] {
				shares[0][i].Memory = inUnits(shares[0][i].Memory, g.UnitMiB, n.hook.SharedGPUs().Factor)
			}
			who := holdings.Holder{ID: heldID(string(g.Pod), container.Name), Namespace: g.Namespace, Limits: container.Limits,
				Name: g.Namespace + "/" + g.Name + ", container " + container.Name, Pod: string(g.Pod), Step: container.Step, Ends: container.Ends}
			if err := n.hook.Book.Hold(n.hook.SharedGPUs(), who, shares[0]); err != nil {
				klog.FromContext(ctx).Error(err, "A running container's share does not fit", "pod", klog.KObj(pod))
			}
		}
		n.departed.add(ctx, pod)
	}
}

// inUnits converts an amount of memory from units of one size to units of another, both in MiB.
func inUnits(amount int64, from, to int) int64 {
	if from <= 0 || to <= 0 || from == to {
		return amount
	}
	return (amount*int64(from) + int64(to) - 1) / int64(to)
}
