package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// Object is an RDMAPool that selects the node.
type Object struct {
	Name       string
	Generation int64
	// UID is the RDMAPool's, and Node that of the node's Node object. An object that is made again under its name has another UID, and
	// often the same generation.
	UID, Node types.UID
	Config    v1alpha1.RDMAPoolConfig
	// Mistake is why the pool cannot be served; nil: it can. The API server's own checks miss some mistakes.
	Mistake error
}

// Same reports whether o is the same state of the same RDMAPool, for the same Node.
func (p *Object) Same(o *Object) bool {
	return p.Name == o.Name && p.UID == o.UID && p.Generation == o.Generation && p.Node == o.Node
}

// Source names the pool where it appears beside those of a file.
func (p *Object) Source() string { return "RDMAPool " + p.Name }

// Listing is the RDMAPools as one node sees them.
type Listing struct {
	Pools  []Object // those that select the node, by name
	Others []string // the names of those that do not, sorted
}

// List reads the RDMAPools once. Without the CRD there are none. An unknown node is an error, since its labels decide.
func (c *Client) List(ctx context.Context) (*Listing, error) {
	var list v1alpha1.RDMAPoolList
	if err := c.pools.Get().Resource(resource).Do(ctx).Into(&list); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list RDMAPools: %w", err)
	}
	node, err := c.core.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the labels of node %s, by which RDMAPools select nodes: %w", c.node, err)
	}
	pools := make([]*v1alpha1.RDMAPool, len(list.Items))
	for i := range list.Items {
		pools[i] = &list.Items[i]
	}
	return selecting(pools, node), nil
}

// selecting separates the pools that select a node from the others.
func selecting(pools []*v1alpha1.RDMAPool, node *corev1.Node) *Listing {
	listing := &Listing{}
	for _, p := range pools {
		if p.DeletionTimestamp != nil {
			continue
		}
		if !p.Spec.Selects(node.Labels) {
			listing.Others = append(listing.Others, p.Name)
			continue
		}
		listing.Pools = append(listing.Pools, Object{
			Name: p.Name, Generation: p.Generation, UID: p.UID, Node: node.UID, Config: *p.Spec.RDMAPoolConfig.DeepCopy(),
			Mistake: p.Spec.Validate(field.NewPath("spec")).ToAggregate(),
		})
	}
	slices.SortFunc(listing.Pools, func(a, b Object) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(listing.Others)
	return listing
}
