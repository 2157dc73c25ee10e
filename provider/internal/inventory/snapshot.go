package inventory

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/api/resource/cliques"
)

// Snapshot is the inventory with the nodes' labels, and with the devices of the nodes of NVLink cliques.
type Snapshot struct {
	*Inventory
	Labels  map[string]map[string]string // by node
	Cliques []cliques.Node
}

// Selects reports whether a node has the labels; a nil selector selects all, an invalid one none.
func (s *Snapshot) Selects(selector *metav1.LabelSelector, node string) bool {
	if selector == nil {
		return true
	}
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && compiled.Matches(labels.Set(s.Labels[node]))
}

// freshFor is how long a snapshot may be used: one plan needs it for each of its resources.
const freshFor = 30 * time.Second

// Cache takes a snapshot at most every half minute, for all callers.
type Cache struct {
	client kubernetes.Interface

	mu   sync.Mutex
	last *Snapshot
	err  error
	at   time.Time
}

// NewCache returns a cache without a snapshot.
func NewCache(client kubernetes.Interface) *Cache { return &Cache{client: client} }

// Snapshot returns the cluster's inventory, at most half a minute old. A failure is cached for as long.
func (c *Cache) Snapshot(ctx context.Context) (*Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < freshFor {
		return c.last, c.err
	}
	c.last, c.err = take(ctx, c.client)
	c.at = time.Now()
	return c.last, c.err
}

func take(ctx context.Context, client kubernetes.Interface) (*Snapshot, error) {
	nodes, err := Nodes(ctx, client, nil)
	if err != nil {
		return nil, err
	}
	inv, err := Read(ctx, client, "")
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Inventory: inv, Labels: map[string]map[string]string{}}
	var survey cliques.Survey
	for i := range nodes {
		s.Labels[nodes[i].Name] = nodes[i].Labels
		survey.AddNode(&nodes[i])
	}
	for i := range inv.Devices {
		d := &inv.Devices[i]
		survey.AddDevice(d.Node, d.Driver, &d.Device)
	}
	s.Cliques = survey.Nodes()
	return s, nil
}

// Holders lists the pods, as namespace/name and sorted, whose claims have a device for which chosen holds.
func (inv *Inventory) Holders(chosen func(*Device, *Claim) bool) []string {
	var pods []string
	for i := range inv.Devices {
		d := &inv.Devices[i]
		for j := range d.Claims {
			if c := &d.Claims[j]; chosen(d, c) {
				for _, pod := range c.Pods {
					pods = append(pods, c.Namespace+"/"+pod)
				}
			}
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}
