package vgpu

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"gpufabric.io/drivers/scheduler/cards"
	"gpufabric.io/drivers/vgpu/annotation"
)

// series are the metrics of Volcano's scheduler for shared GPUs, under its names and labels.
type series struct {
	metrics.BaseStableCollector
	nodes     corelisters.NodeLister
	pods      corelisters.PodLister
	resources annotation.Resources

	shared, memory, cores, limit, podMemory, podCores *metrics.Desc
}

// registerMetrics adds the series to the scheduler's own metrics. They belong to the cluster, not to a profile: a second
// registration does nothing.
func registerMetrics(informers coreinformers.Interface, resources annotation.Resources) error {
	var twice prometheus.AlreadyRegisteredError
	err := legacyregistry.CustomRegister(newSeries(informers.Nodes().Lister(), informers.Pods().Lister(), resources))
	if err != nil && !errors.As(err, &twice) {
		return err
	}
	return nil
}

func newSeries(nodes corelisters.NodeLister, pods corelisters.PodLister, resources annotation.Resources) *series {
	gauge := func(name, help string, variable ...string) *metrics.Desc {
		return metrics.NewDesc("volcano_vgpu_device_"+name, help, append([]string{"devID", "NodeName"}, variable...), nil, metrics.ALPHA, "")
	}
	return &series{
		nodes:     nodes,
		pods:      pods,
		resources: resources,
		shared:    gauge("shared_number", "Containers that share the GPU."),
		memory:    gauge("allocated_memory", "Memory of the GPU that is given away, in units of the node's memory factor."),
		cores:     gauge("allocated_cores", "Percent of the GPU's cores that are given away."),
		limit:     gauge("memory_limit", "Memory of the GPU, in units of the node's memory factor."),
		podMemory: gauge("memory_allocation_for_a_certain_pod", "Memory of the GPU that a pod was given, in units of the node's memory factor.",
			"podName", "podNamespace"),
		podCores: gauge("core_allocation_for_a_certain_pod", "Percent of the GPU's cores that a pod was given.", "podName", "podNamespace"),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (s *series) DescribeWithStability(to chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{s.shared, s.memory, s.cores, s.limit, s.podMemory, s.podCores} {
		to <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (s *series) CollectWithStability(to chan<- metrics.Metric) {
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return
	}
	on := map[string][]*corev1.Pod{}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed &&
			pod.Annotations[annotation.PodNode] == pod.Spec.NodeName {
			on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
		}
	}
	for _, node := range nodes {
		s.collect(to, node, on[node.Name])
	}
}

func (s *series) collect(to chan<- metrics.Metric, node *corev1.Node, pods []*corev1.Pod) {
	gpus, err := annotation.ParseGPUs(node.Annotations[annotation.NodeRegister])
	if err != nil {
		return // Filter reports it, with the node's name
	}
	gauge := func(desc *metrics.Desc, value float64, values ...string) {
		to <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, values...)
	}
	all := make(cards.Node, len(gpus))
	for i, gpu := range gpus {
		all[i].GPU = gpu
	}
	type pair struct{ name, namespace string }
	byName := map[pair]cards.Node{}
	for _, pod := range pods {
		shares, given := s.resources.Given(pod)
		if !given {
			continue
		}
		before := cards.Before(pod, len(shares))
		all.Book(shares, before)
		name := pair{pod.Name, pod.Namespace}
		if byName[name] == nil {
			byName[name] = all.Empty()
		}
		byName[name].Book(shares, before)
	}
	for name, its := range byName {
		for _, card := range its {
			if card.Sharers > 0 {
				gauge(s.podMemory, float64(card.MemoryUsed), card.UUID, node.Name, name.name, name.namespace)
				gauge(s.podCores, float64(card.CoresUsed), card.UUID, node.Name, name.name, name.namespace)
			}
		}
	}
	for _, card := range all {
		gauge(s.shared, float64(card.Sharers), card.UUID, node.Name)
		gauge(s.memory, float64(card.MemoryUsed), card.UUID, node.Name)
		gauge(s.cores, float64(card.CoresUsed), card.UUID, node.Name)
		gauge(s.limit, float64(card.Memory), card.UUID, node.Name)
	}
}
