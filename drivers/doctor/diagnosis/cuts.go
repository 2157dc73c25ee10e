package diagnosis

import (
	"time"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// cutLasts is how long the cut of a GPU may take until it counts as a problem of the installation: its node has 30 s to withdraw devices,
// and three tries 10 s apart to change them.
const cutLasts = 90 * time.Second

// cuts finds the GPUs that are being cut for layouts by demand, for least so far.
func (e *examination) cuts(object string, least time.Duration) {
	index(e.MIGLayouts, func(l *v1alpha1.MIGLayout) {
		if !l.ByDemand() || len(l.Status.Nodes) == 0 {
			return
		}
		for _, c := range l.Cuts() {
			if lasts := max(0, e.Server.Taken.Sub(c.Since)); lasts >= least {
				e.note("GPUBeingCut", -0.5, object, "MIGLayout "+l.Name, "a GPU of node %s is being cut, %s: %s becomes %s (%s)",
					l.Status.Nodes[0].Name, lasts.Round(time.Second), c.Device, v1alpha1.DescribeInstances(c.Instances), c.Reason)
			}
		}
	})
}
