// Package rivals knows other programs that offer the same devices as gpufabric. It is separate from the examination of a cluster,
// so that a program without NVIDIA's libraries, such as the Terraform provider, can look for them.
package rivals

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// Kind is the kind of a rival.
type Kind int

// The kinds.
const (
	// None is no rival.
	None Kind = iota
	// Driver is another DRA driver of NVIDIA's devices.
	Driver
	// DevicePlugin offers devices through the device plugin API.
	DevicePlugin
)

// names are parts of the names or images of DaemonSets, as the chart's own check has them.
func names() (drivers, devicePlugins []string) {
	return []string{"nvidia-dra-driver-", "k8s-dra-driver-gpu", "dra-driver-nvidia-gpu"},
		[]string{"nvidia-device-plugin", "k8s-device-plugin", "rdma-shared-dp", "k8s-rdma-shared-dev-plugin", "volcano-device-plugin",
			"volcano-vgpu-device-plugin", "hami-device-plugin"}
}

// Of classifies a DaemonSet by its name and its images. Those of gpufabric's own chart are no rivals.
func Of(d *appsv1.DaemonSet) Kind {
	if d.Labels["app.kubernetes.io/part-of"] == "gpufabric" || d.Labels["app.kubernetes.io/name"] == "gpufabric" {
		return None
	}
	text := d.Name
	for _, c := range d.Spec.Template.Spec.Containers {
		text += " " + c.Image
	}
	is := func(name string) bool { return strings.Contains(text, name) }
	drivers, plugins := names()
	switch {
	case slices.ContainsFunc(drivers, is):
		return Driver
	case slices.ContainsFunc(plugins, is):
		return DevicePlugin
	}
	return None
}
