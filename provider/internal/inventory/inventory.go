// Package inventory reads from the API which devices a cluster's nodes have (ResourceSlices), who holds them (ResourceClaims), and
// their health (taints).
package inventory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Drivers of this project.
const (
	GPUDriver           = "gpu.nvidia.com"
	RDMADriver          = "rdma.gpufabric.io"
	ComputeDomainDriver = "compute-domain.nvidia.com"
)

// pageSize bounds one answer of the API server: a slice with MIG placements is some 50 KB.
const pageSize = 250

// Device is one published device.
type Device struct {
	Node, Driver, Pool string
	resourcev1.Device
	Claims []Claim // that hold it, or a share of it
}

// Claim is an allocation of a device, or of a share of it.
type Claim struct {
	Namespace, Name string
	Pods            []string                           // that it is reserved for, by name in its namespace
	Consumed        map[resourcev1.QualifiedName]int64 // of a share
}

// Inventory has the cluster's devices at the time of the read.
type Inventory struct {
	Devices []Device // by node, driver, name
	pools   map[poolKey][]resourcev1.CounterSet
}

type poolKey struct{ driver, name string }

// Read lists ResourceSlices (of one driver, or of all when driver is empty) and claims. Slices of an older generation of their pool are
// left out, as the scheduler does.
func Read(ctx context.Context, client kubernetes.Interface, driver string) (*Inventory, error) {
	options := metav1.ListOptions{Limit: pageSize}
	if driver != "" {
		options.FieldSelector = "spec.driver=" + driver
	}
	published, err := list(options, func(o metav1.ListOptions) ([]resourcev1.ResourceSlice, string, error) {
		page, err := client.ResourceV1().ResourceSlices().List(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	claims, err := list(metav1.ListOptions{Limit: pageSize}, func(o metav1.ListOptions) ([]resourcev1.ResourceClaim, string, error) {
		page, err := client.ResourceV1().ResourceClaims("").List(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ResourceClaims: %w", err)
	}
	return build(published, claims), nil
}

// list follows a paged list to its end.
func list[T any](options metav1.ListOptions, page func(metav1.ListOptions) ([]T, string, error)) ([]T, error) {
	var all []T
	for {
		items, next, err := page(options)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if next == "" {
			return all, nil
		}
		options.Continue = next
	}
}

func build(published []resourcev1.ResourceSlice, claims []resourcev1.ResourceClaim) *Inventory {
	newest := map[poolKey]int64{}
	for _, s := range published {
		key := poolKey{s.Spec.Driver, s.Spec.Pool.Name}
		newest[key] = max(newest[key], s.Spec.Pool.Generation)
	}
	holders := map[[3]string][]Claim{}
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.AdminAccess != nil && *r.AdminAccess {
				continue // looks on, takes nothing
			}
			holder := Claim{Namespace: c.Namespace, Name: c.Name, Pods: Pods(&c)}
			for name, amount := range r.ConsumedCapacity {
				if holder.Consumed == nil {
					holder.Consumed = map[resourcev1.QualifiedName]int64{}
				}
				holder.Consumed[name] = amount.Value()
			}
			at := [3]string{r.Driver, r.Pool, r.Device}
			holders[at] = append(holders[at], holder)
		}
	}
	inv := &Inventory{pools: map[poolKey][]resourcev1.CounterSet{}}
	for _, s := range published {
		key := poolKey{s.Spec.Driver, s.Spec.Pool.Name}
		if s.Spec.Pool.Generation < newest[key] {
			continue
		}
		inv.pools[key] = append(inv.pools[key], s.Spec.SharedCounters...)
		node := ""
		if s.Spec.NodeName != nil {
			node = *s.Spec.NodeName
		}
		for _, d := range s.Spec.Devices {
			inv.Devices = append(
				inv.Devices,
				Device{Node: node, Driver: key.driver, Pool: key.name, Device: d, Claims: holders[[3]string{key.driver, key.name, d.Name}]},
			)
		}
	}
	slices.SortFunc(inv.Devices, func(a, b Device) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Driver, b.Driver), natural(a.Name, b.Name))
	})
	return inv
}

// Pods lists the pods that a claim is reserved for, by name in its namespace.
func Pods(c *resourcev1.ResourceClaim) []string {
	var pods []string
	for _, consumer := range c.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, consumer.Name)
		}
	}
	return pods
}

// natural orders gpu-2 before gpu-10.
func natural(a, b string) int {
	if len(a) != len(b) && strings.TrimRight(a, "0123456789") == strings.TrimRight(b, "0123456789") {
		return cmp.Compare(len(a), len(b))
	}
	return strings.Compare(a, b)
}

// Text returns an attribute as text, whatever its type; empty when the device has none.
func (d *Device) Text(name resourcev1.QualifiedName) string {
	a, ok := d.Attributes[name]
	switch {
	case !ok:
		return ""
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	case a.BoolValue != nil:
		return fmt.Sprint(*a.BoolValue)
	}
	return ""
}

// Number returns an integer attribute; -1 when the device has none.
func (d *Device) Number(name resourcev1.QualifiedName) int64 {
	if a, ok := d.Attributes[name]; ok && a.IntValue != nil {
		return *a.IntValue
	}
	return -1
}

// Troubles lists the reasons for which new pods cannot have the device; empty when nothing does.
func (d *Device) Troubles() []string {
	var list []string
	for _, t := range d.Taints {
		if t.Effect == resourcev1.DeviceTaintEffectNoSchedule || t.Effect == resourcev1.DeviceTaintEffectNoExecute {
			text := t.Key
			if t.Value != "" {
				text += "=" + t.Value
			}
			list = append(list, text)
		}
	}
	return list
}

// Nodes lists the cluster's nodes that a selector selects; a nil one selects all.
func Nodes(ctx context.Context, client kubernetes.Interface, selector *metav1.LabelSelector) ([]corev1.Node, error) {
	text := ""
	if selector != nil {
		compiled, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return nil, fmt.Errorf("select nodes: %w", err)
		}
		text = compiled.String()
	}
	nodes, err := list(
		metav1.ListOptions{Limit: pageSize, LabelSelector: text},
		func(o metav1.ListOptions) ([]corev1.Node, string, error) {
			page, err := client.CoreV1().Nodes().List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return page.Items, page.Continue, nil
		},
	)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return natural(a.Name, b.Name) })
	return nodes, nil
}
