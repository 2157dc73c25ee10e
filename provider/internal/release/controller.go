package release

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/provider/internal/cluster"
)

// controllerLabels are on the Deployment of every release's controller, whatever the release was called.
const controllerLabels = "app.kubernetes.io/part-of=gpufabric,app.kubernetes.io/component=controller"

// ControllerTrouble reports why our objects are not processed: a controller is not installed (absent), or the state of its pods. It
// is empty when one runs, and when that is unknown.
func ControllerTrouble(ctx context.Context, client *cluster.Client) (trouble string, absent bool) {
	list, err := client.Typed.AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: controllerLabels})
	if err != nil {
		return "", false // without the right to look, nothing is known, and the wait continues
	}
	if len(list.Items) == 0 {
		return "no Deployment of the gpufabric controller is in the cluster; install the drivers with gpufabric_driver_stack or the chart", true
	}
	for i := range list.Items {
		d := &list.Items[i]
		if d.Status.AvailableReplicas > 0 {
			return "", false
		}
		trouble = fmt.Sprintf("the gpufabric controller %s/%s has no pod available", d.Namespace, d.Name)
		pods, err := client.Typed.CoreV1().Pods(
			d.Namespace,
		).List(
			ctx,
			metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)},
		)
		for j := range pods.Items {
			if why := PodTrouble(&pods.Items[j]); err == nil && why != "" {
				trouble += "; " + why
			}
		}
	}
	return trouble, false
}
