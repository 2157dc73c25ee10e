package objects

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/fakes/profile"
)

// podsPerNode is the kubelet's default.
const podsPerNode = 110

// Node is a Node that is ready, with the labels of NVIDIA's GPU feature discovery and of node feature discovery.
func (o Options) Node(n *profile.Node) *corev1.Node {
	labels := map[string]string{"kubernetes.io/hostname": n.Hostname, "kubernetes.io/os": "linux",
		"kubernetes.io/arch": n.Profile.Host.Architecture}
	maps.Copy(labels, featureLabels(n))
	object := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Hostname, Labels: labels},
		Status: corev1.NodeStatus{Capacity: o.resources(n),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			NodeInfo:   corev1.NodeSystemInfo{Architecture: n.Profile.Host.Architecture, OperatingSystem: "linux", MachineID: n.MachineID}}}
	object.Status.Allocatable = object.Status.Capacity.DeepCopy()
	if o.KWOK {
		object.Annotations = map[string]string{"kwok.x-k8s.io/node": "fake"}
		object.Labels["type"] = "kwok"
	}
	return object
}

func (o Options) resources(n *profile.Node) corev1.ResourceList {
	var cpus, memory int64
	for _, m := range n.Profile.Host.Nodes() {
		list, err := profile.ParseList(m.CPUs)
		if err != nil {
			continue // the profile's check has seen to the form
		}
		cpus += int64(len(list))
		memory += m.MemoryMiB << 20
	}
	all := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cpus, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(podsPerNode, resource.DecimalSI)}
	if o.Extended && len(n.GPUs) > 0 {
		all["nvidia.com/gpu"] = *resource.NewQuantity(int64(len(n.GPUs)), resource.DecimalSI)
	}
	return all
}

// featureLabels are those of GPU feature discovery 0.19 (without its time stamp) and of node feature discovery with the options of NVIDIA's
// operators, which label PCI functions by vendor.
func featureLabels(n *profile.Node) map[string]string {
	all := map[string]string{}
	if len(n.NICs) > 0 {
		all["feature.node.kubernetes.io/pci-15b3.present"] = "true"
	}
	if len(n.GPUs) == 0 {
		return all
	}
	all["feature.node.kubernetes.io/pci-10de.present"] = "true"
	p, m := n.Profile, n.Profile.GPUs.Model
	dashed := func(s string) string { return strings.ReplaceAll(s, " ", "-") }
	driver := append(strings.Split(p.Driver.Version, "."), "", "")
	cudaMajor, cudaMinor, _ := strings.Cut(p.Driver.CUDA, ".")
	major, minor, _ := strings.Cut(m.ComputeCapability, ".")
	family := map[string]string{"ada": "ada-lovelace"}[m.Architecture]
	if family == "" {
		family = m.Architecture
	}
	for key, value := range map[string]string{
		"gpu.present": "true", "gpu.count": strconv.Itoa(len(n.GPUs)), "gpu.product": dashed(m.Name), "gpu.memory": fmt.Sprint(m.MemoryMiB),
		"gpu.family": family, "gpu.compute.major": major, "gpu.compute.minor": minor, "gpu.machine": dashed(p.Host.Product),
		"gpu.replicas": "1", "gpu.sharing-strategy": "none", "gpu.mode": "compute", "mig.capable": strconv.FormatBool(m.MIG != nil),
		"mig.strategy": "single", "mps.capable": "false", "cuda.driver-version.full": p.Driver.Version, "cuda.driver-version.major": driver[0],
		"cuda.driver-version.minor": driver[1], "cuda.driver-version.revision": driver[2], "cuda.driver.major": driver[0],
		"cuda.driver.minor": driver[1], "cuda.driver.rev": driver[2], "cuda.runtime-version.full": p.Driver.CUDA,
		"cuda.runtime-version.major": cudaMajor, "cuda.runtime-version.minor": cudaMinor, "cuda.runtime.major": cudaMajor,
		"cuda.runtime.minor": cudaMinor,
	} {
		all["nvidia.com/"+key] = value
	}
	if m.Integrated {
		delete(all, "nvidia.com/gpu.memory") // NVML does not report it
	}
	if clique := clique(n); clique != "" {
		all["nvidia.com/gpu.clique"] = clique
	}
	return all
}

// clique is the node's NVLink clique; empty: none.
func clique(n *profile.Node) string {
	if n.Profile.Fabric == nil || strings.Trim(n.ClusterUUID, "0-") == "" {
		return ""
	}
	return fmt.Sprintf("%s.%d", n.ClusterUUID, n.Profile.Fabric.CliqueID)
}
