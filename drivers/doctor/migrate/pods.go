package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// match is a field and the name of its rule.
type match struct {
	field, rule string
	says        string // beside the rule's words
}

// ofPod finds the fields of a pod's template that name devices. at is the template's path. replicas is whether nvidia.com/gpu counts
// replicas of GPUs in the cluster, and not GPUs.
func ofPod(annotations map[string]string, spec *corev1.PodSpec, at string, replicas bool) []match {
	var found []match
	hami := strings.HasPrefix(spec.SchedulerName, "hami")
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, "hami.io/") {
			hami = true
			found = append(found, match{field: at + "metadata.annotations[" + key + "]", rule: "hami"})
		}
	}
	if strings.HasPrefix(spec.SchedulerName, "hami") {
		found = append(found, match{field: at + "spec.schedulerName", rule: "hami"})
	}
	for _, list := range []struct {
		name       string
		containers []corev1.Container
	}{{"initContainers", spec.InitContainers}, {"containers", spec.Containers}} {
		for i := range list.containers {
			path := fmt.Sprintf("%sspec.%s[%d].resources.limits", at, list.name, i)
			found = append(found, ofLimits(list.containers[i].Resources.Limits, path, hami, replicas)...)
		}
	}
	return found
}

// ofLimits finds the extended resources of a container.
func ofLimits(limits corev1.ResourceList, at string, hami, replicas bool) []match {
	var found []match
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		switch name {
		case "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores":
			hami = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		quantity := limits[name]
		m := match{field: at + "[" + string(name) + "]"}
		switch {
		case quantity.IsZero():
			continue
		case name == "nvidia.com/gpu" && hami:
			m.rule = "hami-number"
		case name == "nvidia.com/gpu" && !replicas:
			m.rule = "whole"
		case name == "nvidia.com/gpu", name == "nvidia.com/gpu.shared":
			m.rule = "replicas"
		case name == "nvidia.com/gpumem":
			m.rule = "hami-memory"
		case name == "nvidia.com/gpumem-percentage":
			m.rule = "hami-percentage"
		case name == "nvidia.com/gpucores":
			m.rule = "hami-cores"
		case strings.HasPrefix(string(name), "nvidia.com/mig-"):
			m.rule = "mig"
		case strings.HasPrefix(string(name), "nvidia.com/"):
			m.rule = "other"
		case strings.HasPrefix(string(name), "volcano.sh/vgpu-"):
			m.rule = "volcano"
		case strings.HasPrefix(string(name), "rdma/"):
			m.rule = "rdma"
		default:
			continue
		}
		found = append(found, m)
	}
	return found
}

// sharesByReplicas reports whether NVIDIA's device plugin counts replicas on a node, by the labels of GPU feature discovery.
func sharesByReplicas(n *corev1.Node) bool {
	strategy, count := n.Labels["nvidia.com/gpu.sharing-strategy"], n.Labels["nvidia.com/gpu.replicas"]
	return strategy != "" && strategy != "none" && count != "" && count != "0" && count != "1"
}
