package cliques

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// ModeFlag is the controller's flag that selects whose IMEX daemons serve domains.
const ModeFlag = "--imex="

// StopKeeping is the JSON patch of a Deployment with these containers that makes the controller keep no ComputeDomains for cliques,
// and remove those that it kept. It is empty where the controller keeps none. It changes only the flag, and only if the flag is still
// as it was read: the caller may be older than the API server, and know fewer fields.
func StopKeeping(containers []corev1.Container) []map[string]any {
	var patch []map[string]any
	for c := range containers {
		for a, argument := range containers[c].Args {
			mode, is := strings.CutPrefix(argument, ModeFlag)
			if !is || strings.EqualFold(mode, string(v1beta1.IMEXDomain)) {
				continue
			}
			path := fmt.Sprintf("/spec/template/spec/containers/%d/args/%d", c, a)
			patch = append(patch, map[string]any{"op": "test", "path": path, "value": argument},
				map[string]any{"op": "replace", "path": path, "value": ModeFlag + string(v1beta1.IMEXDomain)})
		}
	}
	return patch
}
