// Package rivals recognises other programs that offer the same devices as gpufabric. It is separate from the examination of a cluster,
// so that a program without NVIDIA's libraries, such as the Terraform provider, can look for them.
package rivals

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Category is the kind of a rival: a driver or device plugin that competes for the same devices.
type Category int

// The kinds.
const (
	// None is no rival.
	None Category = iota
	// Driver is another DRA driver of the same devices.
	Driver
	// DevicePlugin offers devices through the device plugin API.
	DevicePlugin
	// SharesRDMA may share RDMA devices: it depends on its configuration.
	SharesRDMA
	// Definition is a CustomResourceDefinition of a kind of ours that has another owner.
	Definition
)

// The components of gpufabric that can have a rival.
const (
	Domains = "domains"
	GPUs    = "gpus"
	RDMA    = "rdma"
)

// Rival is one that was found.
type Rival struct {
	Category Category
	// Component is the one of gpufabric that serves the same devices.
	Component string
	// Object is the Kubernetes object that shows it, such as "daemonset kube-system/x" or "node n1".
	Object string
	// Evidence names the objects or files that were read.
	Evidence string
	// Says is a sentence without its end.
	Says string
	// Owner is the installer of a definition; empty: it is not written on it.
	Owner string
}

// Cluster is the input of the recogniser. Lists that could not be read are empty.
type Cluster struct {
	DaemonSets []appsv1.DaemonSet
	// Deployments are read where gpufabric serves compute domains: another driver's controller serves those of the whole cluster.
	Deployments []appsv1.Deployment
	Nodes       []corev1.Node
	Slices      []resourceapi.ResourceSlice
	CRDs        []metav1.PartialObjectMetadata
	// Namespace is gpufabric's own: an object of its Helm release does not belong to another driver.
	Namespace string
	// Selector is the chart's nodePlugins.nodeSelector: on other nodes another driver may serve. Where it is not empty, the state
	// of the selected nodes decides, and not the names of DaemonSets.
	Selector map[string]string
	// OwnDevicePlugin is whether gpufabric itself serves nvidia.com/gpu by the device plugin API (gpus.devicePlugin).
	OwnDevicePlugin bool
}

// text is rivals.yaml; the chart has a copy of it in files/.
//
//go:embed rivals.yaml
var text []byte

// Table is rivals.yaml as it is embedded.
func Table() []byte { return slices.Clone(text) }

type table struct {
	DaemonSets map[string][]string `json:"daemonSets"`
	Except     []string            `json:"except"`
	Resources  map[string][]string `json:"resources"`
	SharesRDMA []string            `json:"beside"`
}

// read parses the embedded table; a test reads every entry.
func read() table {
	var t table
	if err := yaml.UnmarshalStrict(text, &t); err != nil {
		return table{}
	}
	return t
}

// drivers are the DRA drivers of gpufabric, with the component that each serves and the suffix of its pools' names.
func drivers() map[string][2]string {
	return map[string][2]string{
		"compute-domain.nvidia.com": {Domains, "-compute-domain"}, "gpu.nvidia.com": {GPUs, "-gpu"}, "rdma.gpufabric.io": {RDMA, "-rdma"},
	}
}

// Find returns every rival, first those that were found by the state of nodes.
func Find(c Cluster) []Rival {
	t := read()
	found := slices.Concat(c.slices(), c.allocatable(t), c.controllers(t), c.definitions())
	if len(c.Selector) > 0 {
		return found
	}
	for i := range c.DaemonSets {
		d := &c.DaemonSets[i]
		if kind, component := t.of(d.ObjectMeta, d.Spec.Template.Spec.Containers); kind != None {
			found = append(found, Rival{Category: kind, Component: component, Object: "daemonset " + d.Namespace + "/" + d.Name,
				Evidence: "its name and images", Says: kind.says()})
		}
	}
	return found
}

func (k Category) says() string {
	switch k {
	case Driver:
		return "is another DRA driver of NVIDIA's devices"
	case SharesRDMA:
		return "may hand out RDMA devices that gpufabric serves too: compare its selectors with the RDMAPools"
	default:
		return "hands devices out by the device plugin API"
	}
}

// of classifies a workload by its name and its images. Those of gpufabric's own chart are no rivals.
func (t table) of(d metav1.ObjectMeta, containers []corev1.Container) (kind Category, component string) {
	if d.Labels["app.kubernetes.io/part-of"] == "gpufabric" || d.Labels["app.kubernetes.io/name"] == "gpufabric" {
		return None, ""
	}
	names := d.Name
	for _, c := range containers {
		names += " " + c.Image
	}
	is := func(name string) bool { return strings.Contains(names, name) }
	switch {
	case slices.ContainsFunc(t.Except, is):
		return None, ""
	case slices.ContainsFunc(t.DaemonSets[Domains], is):
		return Driver, Domains
	case slices.ContainsFunc(t.DaemonSets[GPUs], is):
		return DevicePlugin, GPUs
	case slices.ContainsFunc(t.DaemonSets[RDMA], is):
		return DevicePlugin, RDMA
	case slices.ContainsFunc(t.SharesRDMA, is):
		return SharesRDMA, RDMA
	}
	return None, ""
}

// controllers are those of another driver's compute domains. They serve every ComputeDomain, whatever nodes their plugins are on.
func (c Cluster) controllers(t table) []Rival {
	var found []Rival
	for i := range c.Deployments {
		d := &c.Deployments[i]
		if kind, _ := t.of(d.ObjectMeta, d.Spec.Template.Spec.Containers); kind == Driver {
			found = append(found, Rival{Category: Driver, Component: Domains, Object: "deployment " + d.Namespace + "/" + d.Name,
				Evidence: "its name and images",
				Says:     "serves every ComputeDomain of the cluster: set computeDomains.enabled to false here while it runs"})
		}
	}
	return found
}

// selected reports whether gpufabric serves a node.
func (c Cluster) selected(n *corev1.Node) bool {
	for key, value := range c.Selector {
		if n.Labels[key] != value {
			return false
		}
	}
	return true
}

// serves reports whether a node is one of those that gpufabric serves, by its name.
func (c Cluster) serves(node string) bool {
	at := slices.IndexFunc(c.Nodes, func(n corev1.Node) bool { return n.Name == node })
	return len(c.Selector) == 0 || at >= 0 && c.selected(&c.Nodes[at])
}

// slices are ResourceSlices of our drivers' names that gpufabric has not published: its pools are named after node and driver.
func (c Cluster) slices() []Rival {
	var found []Rival
	seen := map[string]bool{}
	for i := range c.Slices {
		s := &c.Slices[i]
		of, has := drivers()[s.Spec.Driver]
		node := ""
		if s.Spec.NodeName != nil {
			node = *s.Spec.NodeName
		}
		key := s.Spec.Driver + " " + node
		if !has || strings.HasSuffix(s.Spec.Pool.Name, of[1]) && s.Spec.Pool.Name != node || seen[key] || node != "" && !c.serves(node) {
			continue
		}
		seen[key] = true
		found = append(found, Rival{Category: Driver, Component: of[0], Object: "resourceslice " + s.Name, Evidence: "its driver and pool",
			Says: fmt.Sprintf("of node %q: another program publishes devices of driver %s, in pool %s", node, s.Spec.Driver, s.Spec.Pool.Name)})
	}
	return found
}

// allocatable are nodes that offer GPUs by the device plugin API while gpufabric publishes none of theirs.
func (c Cluster) allocatable(t table) []Rival {
	if c.OwnDevicePlugin {
		return nil
	}
	ours := map[string]bool{}
	for i := range c.Slices {
		if s := &c.Slices[i].Spec; s.Driver == "gpu.nvidia.com" && s.NodeName != nil && s.Pool.Name == *s.NodeName+drivers()[s.Driver][1] {
			ours[*s.NodeName] = true
		}
	}
	var found []Rival
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if ours[n.Name] || !c.selected(n) {
			continue
		}
		var names []string
		for name, quantity := range n.Status.Allocatable {
			starts := func(prefix string) bool { return strings.HasPrefix(string(name), prefix) }
			if quantity.Sign() > 0 && slices.ContainsFunc(t.Resources[GPUs], starts) {
				names = append(names, string(name))
			}
		}
		if slices.Sort(names); len(names) > 0 {
			found = append(found, Rival{Category: DevicePlugin, Component: GPUs, Object: "node " + n.Name, Evidence: "its status.allocatable",
				Says: "offers " + strings.Join(names, ", ") + " by a device plugin, which may be no DaemonSet but a service of the node"})
		}
	}
	return found
}

// definitions are CustomResourceDefinitions of ours that another owner has installed.
func (c Cluster) definitions() []Rival {
	var found []Rival
	for i := range c.CRDs {
		crd := &c.CRDs[i]
		_, group, _ := strings.Cut(crd.Name, ".")
		kinds := group == "gpufabric.io" || crd.Name == "computedomains.resource.nvidia.com"
		here := c.Namespace != "" && crd.Annotations["meta.helm.sh/release-namespace"] == c.Namespace
		if !kinds || here || crd.Labels["app.kubernetes.io/part-of"] == "gpufabric" {
			continue
		}
		owner := owner(crd)
		found = append(found, Rival{Category: Definition, Component: Domains, Object: "customresourcedefinition " + crd.Name,
			Evidence: "its labels and annotations", Owner: owner, Says: "is owned by " + cmp.Or(owner, "an owner that its labels do not name") +
				": with its schema the API server may drop what gpufabric writes into the status"})
	}
	return found
}

// owner returns the installer of an object: a Helm release, else what its labels name; empty: neither.
func owner(o metav1.Object) string {
	if name := o.GetAnnotations()["meta.helm.sh/release-name"]; name != "" {
		return fmt.Sprintf("the Helm release %s of namespace %s", name, o.GetAnnotations()["meta.helm.sh/release-namespace"])
	}
	for _, label := range []string{"app.kubernetes.io/part-of", "app.kubernetes.io/managed-by", "app.kubernetes.io/name"} {
		if name := o.GetLabels()[label]; name != "" {
			return name
		}
	}
	return ""
}
