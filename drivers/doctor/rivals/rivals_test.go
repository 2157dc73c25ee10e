package rivals

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func node(name string, labels map[string]string, resources ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{}}}
	for _, r := range resources {
		n.Status.Allocatable[corev1.ResourceName(r)] = resource.MustParse("4")
	}
	return n
}

func slice(node, driver, pool string) resourceapi.ResourceSlice {
	return resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-x"}, Spec: resourceapi.ResourceSliceSpec{NodeName: &node,
		Driver: driver, Pool: resourceapi.ResourcePool{Name: pool}}}
}

func daemonSet(name, image string) appsv1.DaemonSet {
	return appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: appsv1.DaemonSetSpec{
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}}}}
}

func deployment(name string, labels map[string]string) appsv1.Deployment {
	return appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Labels: labels}}
}

func TestFindRecognisesNeighboursByNodes(t *testing.T) {
	gone := node("n1", nil)
	gone.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("0")
	ours, theirs := map[string]string{"app.kubernetes.io/part-of": "gpufabric"}, map[string]string{"meta.helm.sh/release-name": "gpu-operator",
		"meta.helm.sh/release-namespace": "gpu-operator"}
	one := map[string]string{"fabric": "gpufabric"}
	crd := func(name string, labels, annotations map[string]string) []metav1.PartialObjectMetadata {
		return []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations}}}
	}
	const domains = "computedomains.resource.nvidia.com"
	for name, c := range map[string]struct {
		in   Cluster
		kind Category // None: nothing is found
		at   string
	}{
		"GPUs by a plugin that is no DaemonSet": {Cluster{Nodes: []corev1.Node{node("n1", nil, "nvidia.com/gpu")}}, DevicePlugin, "node n1"},
		"MIG instances by a plugin": {Cluster{Nodes: []corev1.Node{node("n1", nil, "nvidia.com/mig-1g.10gb")}},
			DevicePlugin, "node n1"},
		"Volcano's shares": {Cluster{Nodes: []corev1.Node{node("n1", nil, "volcano.sh/vgpu-number")}},
			DevicePlugin, "node n1"},
		"a plugin that is gone": {Cluster{Nodes: []corev1.Node{gone}}, None, ""},
		"our own device plugin": {Cluster{Nodes: []corev1.Node{node("n1", nil, "nvidia.com/gpu")}, OwnDevicePlugin: true},
			None, ""},
		"our slice beside": {Cluster{Nodes: []corev1.Node{node("n1", nil, "nvidia.com/gpu")},
			Slices: []resourceapi.ResourceSlice{slice("n1", "gpu.nvidia.com", "n1-gpu")}}, None, ""},
		"NVIDIA's slice": {Cluster{Slices: []resourceapi.ResourceSlice{slice("n1", "gpu.nvidia.com", "n1")}}, Driver, "resourceslice n1-x"},
		"NVIDIA's slice of a node with a name like our pools": {Cluster{
			Slices: []resourceapi.ResourceSlice{slice("rack-gpu", "gpu.nvidia.com", "rack-gpu")}}, Driver, "resourceslice rack-gpu-x"},
		"NVIDIA's slice of domains": {Cluster{Slices: []resourceapi.ResourceSlice{slice("n1", "compute-domain.nvidia.com", "n1")}},
			Driver, "resourceslice n1-x"},
		"another driver's slice": {Cluster{Slices: []resourceapi.ResourceSlice{slice("n1", "gpu.amd.com", "n1")}}, None, ""},
		"NVIDIA's driver on nodes that are not ours": {Cluster{Selector: one, Nodes: []corev1.Node{node("n1", nil, "nvidia.com/gpu"),
			node("n2", one)}, Slices: []resourceapi.ResourceSlice{slice("n1", "gpu.nvidia.com", "n1")},
			DaemonSets: []appsv1.DaemonSet{daemonSet("nvidia-dra-driver-gpu-kubelet-plugin", "x")}}, None, ""},
		"NVIDIA's controller of compute domains, with a selector": {Cluster{Selector: one, Nodes: []corev1.Node{node("n2", one)},
			Deployments: []appsv1.Deployment{deployment("dra-driver-nvidia-gpu-controller", nil)}}, Driver,
			"deployment x/dra-driver-nvidia-gpu-controller"},
		"our controller": {Cluster{Deployments: []appsv1.Deployment{deployment("gpufabric-controller", ours)}}, None, ""},
		"two drivers on one node by mistake": {Cluster{Selector: one, Nodes: []corev1.Node{node("n2", one)},
			Slices: []resourceapi.ResourceSlice{slice("n2", "gpu.nvidia.com", "n2-gpu"), slice("n2", "gpu.nvidia.com", "n2")}},
			Driver, "resourceslice n2-x"},
		"GKE's plugin by its name": {Cluster{DaemonSets: []appsv1.DaemonSet{daemonSet("nvidia-gpu-device-plugin", "x")}},
			DevicePlugin, "daemonset x/nvidia-gpu-device-plugin"},
		"ACK's plugin by its name": {Cluster{DaemonSets: []appsv1.DaemonSet{daemonSet("ack-nvidia-device-plugin", "x")}},
			DevicePlugin, "daemonset x/ack-nvidia-device-plugin"},
		"HAMi's under another release": {Cluster{DaemonSets: []appsv1.DaemonSet{daemonSet("my-hami-device-plugin", "x")}},
			DevicePlugin, "daemonset x/my-hami-device-plugin"},
		"SR-IOV's plugin": {Cluster{DaemonSets: []appsv1.DaemonSet{daemonSet("kube-sriov-device-plugin", "x")}},
			SharesRDMA, "daemonset x/kube-sriov-device-plugin"},
		"dranet":                           {Cluster{DaemonSets: []appsv1.DaemonSet{daemonSet("dranet", "x")}}, SharesRDMA, "daemonset x/dranet"},
		"a plugin of another vendor":       {Cluster{DaemonSets: []appsv1.DaemonSet{daemonSet("amdgpu", "rocm/k8s-device-plugin:1")}}, None, ""},
		"the GPU operator's CRD":           {Cluster{CRDs: crd(domains, nil, theirs)}, Definition, "customresourcedefinition " + domains},
		"a CRD of our release":             {Cluster{CRDs: crd(domains, nil, theirs), Namespace: "gpu-operator"}, None, ""},
		"our CRD":                          {Cluster{CRDs: crd(domains, ours, theirs)}, None, ""},
		"a CRD of a kind that is not ours": {Cluster{CRDs: crd("gpuclusters.nvidia.com", nil, theirs)}, None, ""},
	} {
		found := Find(c.in)
		if c.kind == None {
			if len(found) > 0 {
				t.Errorf("%s: %+v", name, found)
			}
			continue
		}
		if len(found) != 1 || found[0].Category != c.kind || found[0].Object != c.at || found[0].Says == "" {
			t.Errorf("%s: %+v, want one of kind %d at %s", name, found, c.kind, c.at)
		}
	}
}
