package diagnosis

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/computedomain/controller"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/plugin"
	rdma "gpufabric.io/drivers/rdma/dra"
)

// withoutEffect is the code of configuration that names nothing. A node has the chart's values and its own state only, so only a
// look at the whole cluster shows it.
const withoutEffect = "ConfigWithoutEffect"

// arguments returns the values of a flag of a workload's containers.
func arguments(spec corev1.PodSpec, flag string) (values []string) {
	for _, c := range spec.Containers {
		for _, arg := range c.Args {
			if value, ok := strings.CutPrefix(arg, flag+"="); ok && value != "" {
				values = append(values, value)
			}
		}
	}
	return values
}

// gpuValues checks the values of gpu-plugin that name GPUs or select nodes.
func (e *examination) gpuValues(d *appsv1.DaemonSet) {
	object := "daemonset " + d.Namespace + "/" + d.Name
	for _, text := range arguments(d.Spec.Template.Spec, "--forms") {
		choice, err := devices.ParseChoice(text)
		if err != nil || len(e.Nodes) == 0 || !e.Reads("nodes") {
			continue
		}
		for i, rule := range choice.Nodes {
			if selector, err := metav1.LabelSelectorAsSelector(rule.NodeSelector); err == nil && !e.selects(selector) {
				e.find(withoutEffect, object, "its argument --forms", "gpus.forms.nodes[%d] of the chart selects none of the %d nodes (%s)", i,
					len(e.Nodes), selector)
			}
		}
	}
	there := e.valuesOf(devices.Driver, devices.AttrUUID, devices.AttrParentUUID)
	for _, text := range arguments(d.Spec.Template.Spec, "--device-plugin") {
		for i, uuid := range strings.Split(text, ",") {
			if uuid != "all" && len(there) > 0 && !there[uuid] {
				e.find(withoutEffect, object, "its argument --device-plugin",
					"gpus.devicePlugin[%d] of the chart is %s, and no GPU that a node publishes has this UUID", i, uuid)
			}
		}
	}
	index(e.Nodes, func(n *corev1.Node) {
		value, labelled := n.Labels[devices.FormsLabel]
		served := e.pluginPod("gpu-plugin", n.Name) != nil || slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == plugin.FormsCondition
		})
		if labelled && !served && e.Reads("pods") {
			e.find(withoutEffect, "node "+n.Name, "the node's labels", "the label %s=%s has no effect: no gpu-plugin runs on node %s",
				devices.FormsLabel, value, n.Name)
		}
	})
}

// selects reports whether a selector has a node.
func (e *examination) selects(selector labels.Selector) bool {
	return slices.ContainsFunc(e.Nodes, func(n corev1.Node) bool { return selector.Matches(labels.Set(n.Labels)) })
}

// valuesOf are the values that published devices of a driver have for any of the attributes; empty where slices were not read.
func (e *examination) valuesOf(driver string, names ...resourceapi.QualifiedName) map[string]bool {
	values := map[string]bool{}
	if !e.Reads("resourceslices.resource.k8s.io") {
		return values
	}
	for _, p := range e.devices().all(driver) {
		for i := range p.devices {
			for _, name := range names {
				values[attributeOf(&p.devices[i], name)] = true
			}
		}
	}
	delete(values, "")
	return values
}

// extendedResources checks the resources of rdma.extendedResources, of which DRA serves the devices of a pool.
func (e *examination) extendedResources() {
	ports := e.valuesOf(rdma.Driver, rdma.AttrRDMADevice)
	pools := e.valuesOf(rdma.Driver, rdma.AttrPool)
	index(e.Classes, func(c *resourceapi.DeviceClass) {
		name := c.Spec.ExtendedResourceName
		if c.Labels[labelPartOf] != ownName || name == nil || len(ports) == 0 || pools[*name] {
			return
		}
		if slices.ContainsFunc(c.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
			return s.CEL != nil && strings.Contains(s.CEL.Expression, "device.driver == '"+rdma.Driver+"'")
		}) {
			e.find(withoutEffect, "deviceclass "+c.Name, "attribute pool of ResourceSlices",
				"rdma.extendedResources of the chart has %s, and no device of any node is in a pool with this resource", *name)
		}
	})
}

// ownerKinds checks that the kinds of computeDomains.owners are there.
func (e *examination) ownerKinds(d *appsv1.Deployment) {
	if !e.Reads("customresourcedefinitions.apiextensions.k8s.io") {
		return
	}
	for _, kind := range arguments(d.Spec.Template.Spec, "--owners") {
		name := controller.OwnerDefinition(kind)
		if name != "" && !slices.ContainsFunc(e.CRDs, func(c metav1.PartialObjectMetadata) bool { return c.Name == name }) {
			e.find(withoutEffect, "deployment "+d.Namespace+"/"+d.Name, "its argument --owners",
				"computeDomains.owners of the chart has %s, and the cluster has no CustomResourceDefinition %s", kind, name)
		}
	}
}

// unmatched checks the values of a pool's selectors.
func (e *examination) unmatched(p *v1alpha1.RDMAPool) {
	if values := p.Unmatched(); len(values) > 0 {
		e.find(withoutEffect, "rdmapool "+p.Name, "unmatched of the pool's status.nodes", "no device of any node has %s",
			strings.Join(values, ", "))
	}
}
