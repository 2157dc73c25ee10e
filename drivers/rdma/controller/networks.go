package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// resourceAnnotation of a NetworkAttachmentDefinition is the resource whose devices the network has (Multus).
	resourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"
	// networksKept is how long a listing of networks and addresses counts, and how often a pool with networks is looked at.
	networksKept = time.Minute
)

// networks are the secondary networks of the cluster whose addresses whereabouts gives out. One goroutine uses it at a time.
type networks struct {
	reader client.Reader // not cached: these kinds are others', and may be missing
	now    func() time.Time

	read time.Time
	err  error               // of that reading
	full map[string][]string // networks without a free address, by resource, each with its range
	all  map[string]int      // how many networks a resource has
}

// of returns the networks of a resource that have no address left, and how many networks it has. With an error neither is known.
func (n *networks) of(ctx context.Context, resource string) (full []string, count int, err error) {
	if n.read.IsZero() || n.now().Sub(n.read) >= networksKept {
		n.err = n.list(ctx)
		n.read = n.now()
	}
	return n.full[resource], n.all[resource], n.err
}

func (n *networks) list(ctx context.Context) error {
	definitions, err := n.objects(ctx, "k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinitionList")
	if err != nil {
		return err
	}
	n.full, n.all = map[string][]string{}, map[string]int{}
	var pools []unstructured.Unstructured
	for i := range definitions {
		resource := definitions[i].GetAnnotations()[resourceAnnotation]
		text, _, _ := unstructured.NestedString(definitions[i].Object, "spec", "config")
		ranges := rangesOf(text)
		if resource == "" || len(ranges) == 0 {
			continue
		}
		if n.all[resource]++; pools == nil {
			if pools, err = n.objects(ctx, "whereabouts.cni.cncf.io", "v1alpha1", "IPPoolList"); err != nil {
				return err
			}
		}
		for _, r := range ranges {
			for j := range pools {
				if r.gives(&pools[j]) && r.exhausted(taken(&pools[j])) {
					n.full[resource] = append(n.full[resource], fmt.Sprintf("%s/%s (%s to %s)", definitions[i].GetNamespace(), definitions[i].GetName(),
						r.first, r.last))
				}
			}
		}
	}
	return nil
}

// objects lists the objects of a kind; none where the cluster lacks the kind, or the right to list it.
func (n *networks) objects(ctx context.Context, group, version, kind string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	err := n.reader.List(ctx, list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return []unstructured.Unstructured{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s of %s: %w", kind, group, err)
	}
	return list.Items, nil
}

// addressRange is a range of a network's ipam.
type addressRange struct {
	network     string // network_name: pools of its own
	prefix      netip.Prefix
	first, last netip.Addr
	excluded    []netip.Prefix
}

// ipamRange is a range as whereabouts reads it (pkg/types: IPAMConfig and RangeConfiguration).
type ipamRange struct {
	Range   string   `json:"range"`
	Start   string   `json:"range_start"`
	End     string   `json:"range_end"`
	Exclude []string `json:"exclude"`
}

// rangesOf reads the ranges of whereabouts in a CNI configuration, of one plugin or of a list. A range that cannot be read is left out:
// whereabouts refuses it.
func rangesOf(config string) []addressRange {
	type ipam struct {
		Type    string      `json:"type"`
		Network string      `json:"network_name"`
		Ranges  []ipamRange `json:"ipRanges"`
		ipamRange
	}
	var read struct {
		IPAM    ipam                  `json:"ipam"`
		Plugins []struct{ IPAM ipam } `json:"plugins"`
	}
	if json.Unmarshal([]byte(config), &read) != nil {
		return nil
	}
	all := []ipam{read.IPAM}
	for _, plugin := range read.Plugins {
		all = append(all, plugin.IPAM)
	}
	var out []addressRange
	for _, i := range all {
		if i.Type != "whereabouts" {
			continue
		}
		for _, text := range append(i.Ranges, i.ipamRange) {
			if r, ok := text.parse(); ok {
				r.network = i.Network
				out = append(out, r)
			}
		}
	}
	return out
}

// parse works out the first and the last address that whereabouts gives out of a range: neither the network's address nor that of the
// broadcast. A range may be 10.0.0.0/24, 10.0.0.5/24, or 10.0.0.5-10.0.0.9/24.
func (i ipamRange) parse() (r addressRange, ok bool) {
	text, start, end := i.Range, i.Start, i.End
	if from, rest, found := strings.Cut(text, "-"); found {
		to, _, _ := strings.Cut(rest, "/")
		start, end, text = strings.TrimSpace(from), strings.TrimSpace(to), strings.TrimSpace(rest)
	} else if start == "" {
		start, _, _ = strings.Cut(text, "/")
	}
	given, err := netip.ParsePrefix(text)
	if err != nil {
		return r, false
	}
	r.prefix = given.Masked()
	r.first, r.last = r.prefix.Addr().Next(), lastOf(r.prefix).Prev()
	if a, err := netip.ParseAddr(start); err == nil && r.prefix.Contains(a) && r.first.Less(a) {
		r.first = a
	}
	if a, err := netip.ParseAddr(end); err == nil && r.prefix.Contains(a) && a.Less(r.last) {
		r.last = a
	}
	for _, text := range i.Exclude {
		if p, err := netip.ParsePrefix(text); err == nil {
			r.excluded = append(r.excluded, p.Masked())
		} else if a, err := netip.ParseAddr(text); err == nil {
			r.excluded = append(r.excluded, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return r, true
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// gives reports whether an IPPool of whereabouts has the range's addresses. Networks of different names may have the same range. A pool's
// name is the name of its range, after the network's where that has one (IPPoolName and normalizeRange in its
// pkg/storage/kubernetes/ipam.go).
func (r addressRange) gives(pool *unstructured.Unstructured) bool {
	text, _, _ := unstructured.NestedString(pool.Object, "spec", "range")
	prefix, err := netip.ParsePrefix(text)
	name := strings.NewReplacer(":", "-", "/", "-").Replace(text)
	if r.network != "" {
		name = r.network + "-" + name
	}
	return err == nil && prefix.Masked() == r.prefix && pool.GetName() == name
}

// taken are the addresses that an IPPool has given out: its allocations are by their distance from the address of its range.
func taken(pool *unstructured.Unstructured) map[netip.Addr]bool {
	text, _, _ := unstructured.NestedString(pool.Object, "spec", "range")
	prefix, err := netip.ParsePrefix(text)
	allocations, _, _ := unstructured.NestedMap(pool.Object, "spec", "allocations")
	out := make(map[netip.Addr]bool, len(allocations))
	if err != nil {
		return out
	}
	for key := range allocations {
		if distance, err := strconv.ParseUint(key, 10, 64); err == nil {
			out[after(prefix.Addr(), distance)] = true
		}
	}
	return out
}

// after is the address that is so far behind another.
func after(a netip.Addr, distance uint64) netip.Addr {
	bytes := a.AsSlice()
	for i := len(bytes) - 1; i >= 0 && distance > 0; i-- {
		distance += uint64(bytes[i])
		bytes[i] = byte(distance)
		distance >>= 8
	}
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

// exhausted reports whether every address of the range is given out or excluded.
func (r addressRange) exhausted(taken map[netip.Addr]bool) bool {
	if r.last.Less(r.first) {
		return false // it is too small to have addresses, which whereabouts reports
	}
	for a := r.first; a.IsValid() && !r.last.Less(a); a = a.Next() {
		if end, found := r.excludes(a); found {
			a = end
			continue
		}
		if !taken[a] {
			return false
		}
	}
	return true
}

// excludes returns the end of the excluded network that has an address.
func (r addressRange) excludes(a netip.Addr) (netip.Addr, bool) {
	for _, p := range r.excluded {
		if p.Contains(a) {
			return lastOf(p), true
		}
	}
	return netip.Addr{}, false
}
