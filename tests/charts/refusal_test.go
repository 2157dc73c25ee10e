package charts

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// existing is an object that already exists in the cluster.
func existing(apiVersion, kind, space, name string, labels, annotations map[string]any) unstructured.Unstructured {
	metadata := map[string]any{"name": name, "labels": labels, "annotations": annotations}
	if space != "" {
		metadata["namespace"] = space
	}
	return unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}}
}

// daemonSet is an existing DaemonSet whose only container runs an image.
func daemonSet(space, name, image string, labels map[string]any) unstructured.Unstructured {
	object := existing("apps/v1", "DaemonSet", space, name, labels, nil)
	object.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{
		"containers": []any{map[string]any{"name": "ctr", "image": image}},
	}}}
	return object
}

// controllerOfDomains is the Deployment of NVIDIA's DRA driver.
func controllerOfDomains() unstructured.Unstructured {
	object := daemonSet("nvidia", "dra-driver-nvidia-gpu-controller", "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0", nil)
	object.SetKind("Deployment")
	return object
}

// pluginOf is a DaemonSet in a namespace that a release of ours made.
func pluginOf(release, releaseNamespace, space string) unstructured.Unstructured {
	object := daemonSet(space, "gpufabric-rdma-plugin", "ghcr.io/gpufabric/gpufabric:0.1.0", map[string]any{
		"app.kubernetes.io/part-of": "gpufabric", "app.kubernetes.io/component": "rdma-plugin",
	})
	object.SetAnnotations(map[string]string{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": releaseNamespace})
	return object
}

func crd(labels, annotations map[string]any) unstructured.Unstructured {
	return existing("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "computedomains.resource.nvidia.com", labels, annotations)
}

// storedIn gives a CRD the versions in which the server has stored its objects.
func storedIn(object unstructured.Unstructured, versions ...any) unstructured.Unstructured {
	object.Object["status"] = map[string]any{"storedVersions": versions}
	return object
}

func deviceClass(name string) unstructured.Unstructured {
	return existing("resource.k8s.io/v1", "DeviceClass", "", name, nil, nil)
}

func TestChartRejectsConflictingValues(t *testing.T) {
	ours := map[string]any{"app.kubernetes.io/part-of": "gpufabric"}
	for _, test := range []struct {
		name    string
		values  map[string]any
		cluster Cluster
		refused []string // parts of the refusal; none means that it renders
	}{
		{"an empty cluster is fine", nil, Cluster{}, nil},
		{"an older server", nil, Cluster{Version: "v1.33.9"}, []string{"1.34", "v1.33.9"}},
		{"a server without the newest fields is fine", nil, Cluster{Version: "v1.34.3"}, nil},
		{"a vendor's build of 1.36 is fine", nil, Cluster{Version: "v1.36.2-gke.1003"}, nil},
		{"a later server is fine", nil, Cluster{Version: "v1.38.0"}, nil},
		{"a server without resource.k8s.io/v1", nil, Cluster{Lacks: []string{"resource.k8s.io/v1"}},
			[]string{"resource.k8s.io/v1", "--runtime-config"}},
		{"NVIDIA's CRD", nil, Cluster{Objects: []unstructured.Unstructured{crd(nil, nil)}},
			[]string{"CustomResourceDefinition computedomains.resource.nvidia.com", "Uninstall", "takeOver=true"}},
		{"NVIDIA's CRD, to be taken over", map[string]any{"takeOver": true}, Cluster{Objects: []unstructured.Unstructured{crd(nil, nil)}}, nil},
		{"the GPU operator's CRD is named with its owner", nil, Cluster{Objects: []unstructured.Unstructured{crd(nil,
			map[string]any{"meta.helm.sh/release-name": "gpu-operator", "meta.helm.sh/release-namespace": "nvidia"})}},
			[]string{"Helm release gpu-operator of namespace nvidia", "crds.takeOver=true"}},
		{"the GPU operator's CRD, to be taken over", map[string]any{"crds": map[string]any{"takeOver": true}},
			Cluster{Objects: []unstructured.Unstructured{crd(nil, nil)}}, nil},
		{"a driver beside a CRD that is taken over", map[string]any{"crds": map[string]any{"takeOver": true}},
			Cluster{Objects: []unstructured.Unstructured{crd(nil, nil), daemonSet("a", "nvidia-dra-driver-gpu-kubelet-plugin", "x", nil)}},
			[]string{"DaemonSet a/nvidia-dra-driver"}},
		{"a device plugin that is no DaemonSet", everything(), Cluster{Objects: []unstructured.Unstructured{
			gpuNode("n1", nil, "8")}}, []string{"nvidia.com/gpu by a device plugin on node n1"}},
		{"a device plugin that is gone is fine", everything(), Cluster{Objects: []unstructured.Unstructured{gpuNode("n1", nil, "0")}}, nil},
		{"a device plugin of our own is fine", map[string]any{"gpus": map[string]any{"enabled": true, "devicePlugin": []any{"all"}}},
			Cluster{Objects: []unstructured.Unstructured{gpuNode("n1", nil, "8")}}, nil},
		{"a device plugin beside our slice is fine, on upgrade", everything(), Cluster{Objects: []unstructured.Unstructured{
			gpuNode("n1", nil, "8"), resourceSlice("n1", "gpu.nvidia.com", "n1-gpu")}}, nil},
		{"another DRA driver's slice of our driver", nil, Cluster{Objects: []unstructured.Unstructured{
			gpuNode("n1", nil, "0"), resourceSlice("n1", "compute-domain.nvidia.com", "n1")}},
			[]string{"driver compute-domain.nvidia.com on node n1"}},
		{"another driver on nodes that are not selected is fine", selecting(), Cluster{Objects: []unstructured.Unstructured{
			gpuNode("n1", nil, "8"), gpuNode("n2", map[string]any{"fabric": "gpufabric"}, "0"), resourceSlice("n1", "gpu.nvidia.com", "n1"),
			daemonSet("nvidia-dra-driver-gpu", "nvidia-dra-driver-gpu-kubelet-plugin", "x", nil)}}, nil},
		{"another driver on a node that is selected", selecting(), Cluster{Objects: []unstructured.Unstructured{
			gpuNode("n2", map[string]any{"fabric": "gpufabric"}, "8")}}, []string{"on node n2"}},
		{"NVIDIA's controller of compute domains beside ours, on other nodes", selecting(), Cluster{Objects: []unstructured.Unstructured{
			controllerOfDomains()}}, []string{"Deployment nvidia/dra-driver-nvidia-gpu-controller", "computeDomains.enabled=false"}},
		{"NVIDIA's controller of compute domains, and none of ours, is fine", map[string]any{"gpus": on(), "computeDomains": off(),
			"nodePlugins": selecting()["nodePlugins"]}, Cluster{Objects: []unstructured.Unstructured{controllerOfDomains()}}, nil},
		{"GKE's device plugin", everything(), Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "nvidia-gpu-device-plugin", "gke.gcr.io/x", nil)}}, []string{"kube-system/nvidia-gpu-device-plugin"}},
		{"ACK's device plugin", everything(), Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "ack-nvidia-device-plugin", "registry.example/x", nil)}}, []string{"kube-system/ack-nvidia-device-plugin"}},
		{"HAMi's plugin without vgpu", map[string]any{"gpus": on()}, Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "my-hami-device-plugin", "projecthami/hami", nil)}}, []string{"my-hami-device-plugin"}},
		{"AMD's device plugin is fine", everything(), Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "amdgpu", "rocm/k8s-device-plugin:1.31", nil)}}, nil},
		{"NVIDIA's CRD, but ours are not to be installed", map[string]any{"crds": map[string]any{"install": false}},
			Cluster{Objects: []unstructured.Unstructured{crd(nil, nil)}}, nil},
		{"our CRD, kept by an earlier release", nil, Cluster{Objects: []unstructured.Unstructured{crd(ours, nil)}}, nil},
		{"our CRD, installed by this release before it had labels", nil, Cluster{Objects: []unstructured.Unstructured{
			crd(nil, map[string]any{"meta.helm.sh/release-name": "gpufabric", "meta.helm.sh/release-namespace": namespace})}}, nil},
		{"our CRD, in a version of a later chart", map[string]any{"takeOver": true}, Cluster{Objects: []unstructured.Unstructured{
			storedIn(crd(ours, nil), "v1beta1", "v1")}}, []string{computeDomainsName, "version v1,", "has v1beta1 alone", "a later release"}},
		{"our CRD, in the chart's version, is fine", nil,
			Cluster{Objects: []unstructured.Unstructured{storedIn(crd(ours, nil), "v1beta1")}}, nil},
		{"NVIDIA's device class of a domain", nil, Cluster{Objects: []unstructured.Unstructured{deviceClass("compute-domain-daemon.nvidia.com")}},
			[]string{"DeviceClass compute-domain-daemon.nvidia.com"}},
		{"NVIDIA's device class of GPUs, with GPUs on", everything(),
			Cluster{Objects: []unstructured.Unstructured{deviceClass("gpu.nvidia.com")}},
			[]string{"DeviceClass gpu.nvidia.com"}},
		{"NVIDIA's device class of GPUs, with GPUs off, is fine", nil,
			Cluster{Objects: []unstructured.Unstructured{deviceClass("gpu.nvidia.com")}}, nil},
		{"NVIDIA's DRA driver by its name", nil, Cluster{Objects: []unstructured.Unstructured{
			daemonSet("nvidia-dra-driver-gpu", "nvidia-dra-driver-gpu-kubelet-plugin", "registry.example/any", nil)}},
			[]string{"DaemonSet nvidia-dra-driver-gpu/nvidia-dra-driver-gpu-kubelet-plugin"}},
		{"NVIDIA's DRA driver by its image", nil, Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "gpus", "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0", nil)}}, []string{"DaemonSet kube-system/gpus"}},
		{"all that clashes is named at once", nil, Cluster{Objects: []unstructured.Unstructured{
			crd(nil, nil), deviceClass("compute-domain-default-channel.nvidia.com"),
			daemonSet("a", "nvidia-dra-driver-gpu-kubelet-plugin", "x", nil)}},
			[]string{"CustomResourceDefinition computedomains", "DeviceClass compute-domain-default-channel.nvidia.com",
				"DaemonSet a/nvidia-dra-driver"}},
		{"NVIDIA's device plugin, with GPUs on", everything(), Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.18.0", nil)}},
			[]string{"nvidia-device-plugin-daemonset"}},
		{"NVIDIA's device plugin, with GPUs off, is fine", nil, Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.18.0", nil)}}, nil},
		{"the shared RDMA plugin, with RDMA on", everything(), Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "rdma-shared-dp-ds", "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin", nil)}}, []string{"rdma-shared-dp-ds"}},
		{"Volcano's vGPU plugin, with slices on", everything(), Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "volcano-device-plugin", "docker.io/projecthami/volcano-vgpu-device-plugin:v1.11.0", nil)}},
			[]string{"volcano-device-plugin"}},
		{"another release of ours", nil, Cluster{Release: "second", Objects: []unstructured.Unstructured{
			pluginOf("gpufabric", namespace, namespace)}}, []string{`installed already, as release "gpufabric" in namespace "gpufabric-system"`}},
		{"a release of the same name elsewhere", nil, Cluster{Objects: []unstructured.Unstructured{
			pluginOf("gpufabric", "elsewhere", "elsewhere")}}, []string{`installed already, as release "gpufabric" in namespace "elsewhere"`}},
		{"this release, on upgrade, is fine", nil, Cluster{Objects: []unstructured.Unstructured{pluginOf("gpufabric", namespace, namespace)}},
			nil},
		{"a plugin of this release in a namespace of its own is fine", nil, Cluster{Objects: []unstructured.Unstructured{
			pluginOf("gpufabric", namespace, "kube-system")}}, nil},
		{"a daemon of a compute domain is no other release", nil, Cluster{Objects: []unstructured.Unstructured{
			daemonSet(namespace, "computedomain-daemon-x", "ghcr.io/gpufabric/gpufabric:0.1.0", ours)}}, nil},
		{"a DaemonSet of somebody else is fine", nil, Cluster{Objects: []unstructured.Unstructured{
			daemonSet("kube-system", "kube-proxy", "registry.k8s.io/kube-proxy:v1.36.3", nil)}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Render(load(t, "gpufabric"), test.values, test.cluster)
			if len(test.refused) == 0 {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("rendered as if nothing were in the way")
			}
			for _, part := range test.refused {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the refusal lacks %q:\n%v", part, err)
				}
			}
		})
	}
}

// gpuNode is a node with an allocatable number of nvidia.com/gpu.
func gpuNode(name string, labels map[string]any, gpus string) unstructured.Unstructured {
	out := existing("v1", "Node", "", name, labels, nil)
	out.Object["status"] = map[string]any{"allocatable": map[string]any{"cpu": "96", "nvidia.com/gpu": gpus}}
	return out
}

func resourceSlice(node, driver, pool string) unstructured.Unstructured {
	out := existing("resource.k8s.io/v1", "ResourceSlice", "", node+"-"+pool, nil, nil)
	out.Object["spec"] = map[string]any{"nodeName": node, "driver": driver, "pool": map[string]any{"name": pool}}
	return out
}

// selecting are values of an installation on labelled nodes alone.
func selecting() map[string]any {
	return map[string]any{"gpus": on(), "nodePlugins": map[string]any{"nodeSelector": map[string]any{"fabric": "gpufabric"}}}
}

// on is the section of a driver that is enabled.
func on() map[string]any { return map[string]any{"enabled": true} }

func off() map[string]any { return map[string]any{"enabled": false} }
