package release

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"helm.sh/helm/v3/pkg/action"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/object"
)

// Impact is the effect of an upgrade on the pods of a release.
type Impact struct {
	Restarted []Touched // workloads whose pods are replaced
	Removed   []Touched // workloads that go
}

// Touched is a workload that an upgrade changes.
type Touched struct {
	Workload string   // "DaemonSet gpufabric-system/gpufabric-gpu-plugin"
	Driver   string   // the DRA driver it runs, empty without one
	Nodes    []string // on which it runs now, sorted
}

// pluginDrivers are the DRA drivers of node plugins, by the name of their container.
var pluginDrivers = map[string]string{
	"compute-domain-plugin": "compute-domain.nvidia.com",
	"gpu-plugin":            "gpu.nvidia.com",
	"rdma-plugin":           "rdma.gpufabric.io",
}

// Impact renders the objects of an upgrade of an existing release to spec, without applying them, and compares. It is empty for a
// release that does not exist.
func (m *Manager) Impact(ctx context.Context, spec Spec) (Impact, error) {
	last, err := m.Get(ctx, spec.Name)
	if err != nil || last == nil {
		return Impact{}, err
	}
	config, err := m.config(ctx)
	if err != nil {
		return Impact{}, err
	}
	upgrade := action.NewUpgrade(config)
	upgrade.Namespace = spec.Namespace
	upgrade.ResetValues, upgrade.SkipCRDs = true, true
	upgrade.DryRun, upgrade.DryRunOption = true, "server" // the chart's templates use lookup
	next, err := upgrade.RunWithContext(ctx, spec.Name, spec.Chart.chart, deepCopy(spec.Values))
	if err != nil {
		return Impact{}, fmt.Errorf("render an upgrade of release %s: %w", spec.Name, err)
	}
	impact, selectors, err := compare(last.Manifest, next.Manifest, spec.Namespace)
	if err != nil {
		return Impact{}, err
	}
	for _, list := range [][]Touched{impact.Restarted, impact.Removed} {
		for i := range list {
			if list[i].Nodes, err = m.nodesOf(ctx, selectors[list[i].Workload]); err != nil {
				return Impact{}, err
			}
		}
	}
	return impact, nil
}

// compare finds the workloads whose pods differ between two manifests. selectors are those of the workloads as they are.
func compare(have, want, namespace string) (impact Impact, selectors map[string]workload, err error) {
	before, err := objects(have, namespace)
	if err != nil {
		return impact, nil, err
	}
	after, err := objects(want, namespace)
	if err != nil {
		return impact, nil, err
	}
	next := map[string]*unstructured.Unstructured{}
	for _, obj := range after {
		next[workload{Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}.String()] = obj
	}
	list, err := workloads(&Release{Manifest: have, Namespace: namespace})
	if err != nil {
		return impact, nil, err
	}
	selectors = map[string]workload{}
	for _, w := range list {
		selectors[w.String()] = w
		at := slices.IndexFunc(before, func(obj *unstructured.Unstructured) bool {
			return obj.GetKind() == w.Kind && obj.GetNamespace() == w.Namespace && obj.GetName() == w.Name
		})
		touched := Touched{Workload: w.String(), Driver: driverOf(before[at])}
		switch n := next[w.String()]; {
		case n == nil:
			impact.Removed = append(impact.Removed, touched)
		case !reflect.DeepEqual(podTemplate(before[at]), podTemplate(n)):
			impact.Restarted = append(impact.Restarted, touched)
		}
	}
	return impact, selectors, nil
}

// podTemplate is the template as written, so that a field which this provider does not know counts as a difference too.
func podTemplate(obj *unstructured.Unstructured) map[string]any {
	template, _, _ := unstructured.NestedMap(obj.Object, "spec", "template")
	return template
}

// driverOf returns the DRA driver that a workload's containers run, empty for none.
func driverOf(obj *unstructured.Unstructured) string {
	owner, err := object.Read[podOwner](obj)
	if err != nil {
		return ""
	}
	for _, c := range owner.Spec.Template.Spec.Containers {
		if pluginDrivers[c.Name] != "" {
			return pluginDrivers[c.Name]
		}
	}
	return ""
}

// nodesOf lists the nodes on which a workload has pods.
func (m *Manager) nodesOf(ctx context.Context, w workload) ([]string, error) {
	pods, err := m.podsOf(ctx, w)
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}
