package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// others are the kinds of Multus and whereabouts.
type others struct {
	client.Reader
	lists map[string][]unstructured.Unstructured // by kind
	err   error
	reads int
}

func (o *others) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	o.reads++
	kind := list.GetObjectKind().GroupVersionKind()
	items, served := o.lists[kind.Kind]
	if !served {
		return errors.Join(o.err, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: kind.Group, Kind: kind.Kind}})
	}
	list.(*unstructured.UnstructuredList).Items = items
	return o.err
}

func network(name, resource, config string) unstructured.Unstructured {
	o := unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}}
	o.SetNamespace("jobs")
	o.SetName(name)
	o.SetAnnotations(map[string]string{resourceAnnotation: resource})
	return o
}

func ipPool(name, text string, distances ...int) unstructured.Unstructured {
	allocations := map[string]any{}
	for _, d := range distances {
		allocations[fmt.Sprint(d)] = map[string]any{"podref": "jobs/p"}
	}
	o := unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"range": text, "allocations": allocations}}}
	o.SetName(name)
	return o
}

func upTo(first, last int) (all []int) {
	for i := first; i <= last; i++ {
		all = append(all, i)
	}
	return all
}

func TestNetworksReportsARangeWhenEveryAddressIsGivenOut(t *testing.T) {
	ipam := func(members string) string {
		return `{"type": "macvlan", "ipam": {"type": "whereabouts", ` + members + `}}`
	}
	for _, test := range []struct {
		name, config string
		pool         unstructured.Unstructured
		full         bool
	}{
		{"a free one", ipam(`"range": "10.0.0.0/29"`), ipPool("10.0.0.0-29", "10.0.0.0/29", upTo(1, 5)...), false},
		{"none", ipam(`"range": "10.0.0.0/29"`), ipPool("10.0.0.0-29", "10.0.0.0/29", upTo(1, 6)...), true},
		{"the rest is excluded", ipam(`"range": "10.0.0.0/28", "exclude": ["10.0.0.8/29", "10.0.0.1"]`),
			ipPool("10.0.0.0-28", "10.0.0.0/28", upTo(2, 7)...), true},
		{"between start and end", ipam(`"range": "10.0.0.0/24", "range_start": "10.0.0.10", "range_end": "10.0.0.12"`),
			ipPool("10.0.0.0-24", "10.0.0.0/24", 10, 11, 12), true},
		{"another network's of the same pool", ipam(`"range": "10.0.0.0/24", "range_start": "10.0.0.10", "range_end": "10.0.0.12"`),
			ipPool("10.0.0.0-24", "10.0.0.0/24", 20, 21, 22), false},
		{"from an address on", ipam(`"range": "10.0.0.252/24"`), ipPool("10.0.0.0-24", "10.0.0.0/24", 252, 253, 254), true},
		{"from one to another", ipam(`"range": "10.0.0.3-10.0.0.4/24"`), ipPool("10.0.0.0-24", "10.0.0.0/24", 3, 4), true},
		{"ipRanges", ipam(`"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/125"}]`),
			ipPool("fd00---125", "fd00::/125", upTo(1, 6)...), true},
		{"a pool of its own", ipam(`"range": "10.0.0.0/30", "network_name": "blue"`), ipPool("10.0.0.0-30", "10.0.0.0/30", 1, 2), false},
		{"its own is full", ipam(`"range": "10.0.0.0/30", "network_name": "blue"`), ipPool("blue-10.0.0.0-30", "10.0.0.0/30", 1, 2), true},
		{"full is one of another network with a name", ipam(`"range": "10.0.0.0/30"`), ipPool("blue-10.0.0.0-30", "10.0.0.0/30", 1, 2), false},
		{"full is one of a network with a longer name", ipam(`"range": "10.0.0.0/30", "network_name": "blue"`),
			ipPool("blue-rail-10.0.0.0-30", "10.0.0.0/30", 1, 2), false},
		{"a list of plugins", `{"plugins": [{"type": "tuning"}, ` + ipam(`"range": "10.0.0.0/30"`) + `]}`,
			ipPool("10.0.0.0-30", "10.0.0.0/30", 1, 2), true},
		{"one address", ipam(`"range": "10.0.0.1/32"`), ipPool("10.0.0.1-32", "10.0.0.1/32"), false},
		{"a pool that is no pool", ipam(`"range": "10.0.0.0/30"`), ipPool("x", "nonsense", 1, 2), false},
		{"a large range of IPv6", ipam(`"range": "fd00::/64"`), ipPool("fd00---64", "fd00::/64", upTo(1, 500)...), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			reader := &others{lists: map[string][]unstructured.Unstructured{
				"NetworkAttachmentDefinitionList": {network("rail", "rdma/a", test.config), network("other", "rdma/b", "{")},
				"IPPoolList":                      {test.pool},
			}}
			n := networks{reader: reader, now: time.Now}
			full, count, err := n.of(t.Context(), "rdma/a")
			if err != nil || count != 1 || (len(full) > 0) != test.full {
				t.Errorf("%q of %d networks, %v", full, count, err)
			}
			if test.full && !strings.HasPrefix(full[0], "jobs/rail (") {
				t.Error(full)
			}
			if _, count, err := n.of(t.Context(), "rdma/b"); count != 0 || err != nil || reader.reads != 2 {
				t.Errorf("a configuration that is no JSON: %d networks, %v, after %d lists", count, err, reader.reads)
			}
		})
	}
}

func TestNetworksAreNoneWhereTheKindsAreMissing(t *testing.T) {
	n := networks{reader: &others{}, now: time.Now}
	if full, count, err := n.of(t.Context(), "rdma/a"); len(full) > 0 || count != 0 || err != nil {
		t.Errorf("%q of %d networks, %v", full, count, err)
	}
	silent := &others{lists: map[string][]unstructured.Unstructured{"NetworkAttachmentDefinitionList": nil}, err: errors.New("no answer")}
	broken := networks{reader: silent, now: time.Now}
	for range 3 {
		if _, _, err := broken.of(t.Context(), "rdma/a"); err == nil || silent.reads != 1 {
			t.Errorf("%v after %d lists: nothing is known, and a list that failed is repeated after a while only", err, silent.reads)
		}
	}
}

func TestConditionOfNetworksFollowsTheirAddresses(t *testing.T) {
	var s v1alpha1.RDMAPoolStatus
	for _, step := range []struct {
		full     []string
		networks int
		status   metav1.ConditionStatus
		reason   string
	}{{nil, 0, "", ""}, {nil, 2, metav1.ConditionFalse, reasonAddressesLeft}, {[]string{"jobs/rail (10.0.0.1 to 10.0.0.6)"}, 2,
		metav1.ConditionTrue, reasonExhausted}, {nil, 0, "", ""}} {
		setExhausted(&s, 1, step.full, step.networks, time.Now())
		c := condition(s, v1alpha1.RDMAPoolExhausted)
		if c.Status != step.status || c.Reason != step.reason || len(step.full) > 0 && !strings.Contains(c.Message, step.full[0]) {
			t.Errorf("%v: %+v", step, c)
		}
	}
}

func TestTakenAddressesAreThoseOfTheAllocations(t *testing.T) {
	pool := ipPool("p", "10.0.0.0/16", 1, 255, 256, 65534)
	var got []string
	for _, a := range slices.SortedFunc(maps.Keys(taken(&pool)), netip.Addr.Compare) {
		got = append(got, a.String())
	}
	if want := "10.0.0.1 10.0.0.255 10.0.1.0 10.0.255.254"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}
