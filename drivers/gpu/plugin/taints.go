package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
)

// taintPatience is how long to wait until the API server has a taint.
const taintPatience = 30 * time.Second

// publishedTaints follows the taints of the node's devices in the API server.
type publishedTaints struct {
	client kubernetes.Interface
	node   string
	kind   *claims.Preparer
}

// await waits until the API server has the taint on all wanted devices of the pool.
func (p publishedTaints) await(ctx context.Context, taint string, wanted func(*devices.Device) bool) error {
	ctx, cancel := context.WithTimeout(ctx, taintPatience)
	defer cancel()
	own := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + p.node + "," +
		resourceapi.ResourceSliceSelectorDriver + "=" + devices.Driver}
	slicesOf := p.client.ResourceV1().ResourceSlices()
	for {
		list, err := slicesOf.List(ctx, own)
		if err != nil {
			return fmt.Errorf("check whether the taints are published: %w", err)
		}
		if p.tainted(list.Items, taint, wanted) {
			return nil
		}
		own.ResourceVersion = list.ResourceVersion
		w, err := slicesOf.Watch(ctx, own)
		own.ResourceVersion = ""
		if err != nil {
			return fmt.Errorf("watch for the taints to be published: %w", err)
		}
		select {
		case <-w.ResultChan():
		case <-ctx.Done():
			w.Stop()
			return fmt.Errorf("wait for the taints to be published: %w", context.Cause(ctx))
		}
		w.Stop()
	}
}

// tainted reports whether the slices are the complete pool, with a taint on all wanted devices. A cluster that drops taints has them
// withheld: then they are tainted when they are gone.
func (p publishedTaints) tainted(published []resourceapi.ResourceSlice, taint string, wanted func(*devices.Device) bool) bool {
	seen := map[string]bool{}
	h := p.kind.Hardware()
	if h.Offer.Missing.Taints {
		for _, d := range h.Pool.Devices() {
			seen[d.Name()] = true
		}
	}
	for _, s := range published {
		for _, d := range s.Spec.Devices {
			if h.Offer.Missing.Taints {
				delete(seen, d.Name)
			} else if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == taint }) {
				seen[d.Name] = true
			}
		}
	}
	for _, d := range h.Pool.Devices() {
		if wanted(d) && !seen[d.Name()] {
			return false
		}
	}
	return true
}
