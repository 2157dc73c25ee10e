package plugin

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/selection"
)

// profiles offers the node's GPUs divided by each software VGPUProfile that selects the node.
type profiles struct {
	kind *claims.Preparer
	view selection.Node
}

// Run follows the profiles until ctx ends.
func (p *profiles) Run(ctx context.Context) error {
	if p.view.Dynamic == nil {
		return nil
	}
	kind := v1alpha1.SchemeGroupVersion().WithResource("vgpuprofiles")
	selector := func(o *v1alpha1.VGPUProfile) *metav1.LabelSelector { return o.Spec.NodeSelector }
	return selection.Watch(ctx, p.view, kind, selector, func(selected []v1alpha1.VGPUProfile) {
		var profiles []devices.Profile
		for i := range selected {
			o := &selected[i]
			if err := o.Spec.Validate(field.NewPath("spec")).ToAggregate(); err != nil {
				klog.FromContext(ctx).Info("VGPUProfile is ignored", "profile", o.Name, "reason", err.Error())
				continue
			}
			if o.Spec.Mode != v1alpha1.VGPUSoftware {
				continue // the other modes choose among existing devices
			}
			profiles = append(profiles, devices.Profile{
				Name: o.Name, Split: int64(o.Spec.Split), ProductNames: o.Spec.ProductNames,
				Share: devices.Share{Memory: uint64(o.Spec.Memory.Value()), Cores: int64(o.Spec.Cores)}, //nolint:gosec // validated: at most 1Ti
			})
		}
		p.kind.SetProfiles(profiles)
	})
}
