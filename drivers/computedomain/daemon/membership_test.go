package daemon

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/imexd"
)

func domainWith(uid types.UID, nodes ...v1beta1.ComputeDomainNode) *v1beta1.ComputeDomain {
	return &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: uid}, Status: v1beta1.ComputeDomainStatus{
		Nodes: nodes, Cliques: []v1beta1.ComputeDomainClique{{ID: "c.1", Slots: 36}, {ID: "c.2", Slots: 18}},
	}}
}

func TestMembershipJoinsTheNodesOfTheClique(t *testing.T) {
	own := v1beta1.ComputeDomainNode{Name: "a", IPAddress: "10.0.0.1", CliqueID: "c.1", Index: 1}
	peer := v1beta1.ComputeDomainNode{Name: "b", IPAddress: "10.0.0.2", CliqueID: "c.1", Index: 0}
	stranger := v1beta1.ComputeDomainNode{Name: "c", IPAddress: "10.0.0.3", CliqueID: "c.2", Index: 0}
	outside, renewed := own, own
	outside.CliqueID = ""
	renewed.IPAddress = "10.0.0.9"
	for name, c := range map[string]struct {
		domain *v1beta1.ComputeDomain
		want   []imexd.Group
	}{
		"peers of its clique": {domainWith("u", own, peer, stranger),
			[]imexd.Group{{Domain: "u", Clique: "c.1", Own: 1, Slots: 36,
				Peers: []imexd.Peer{{Index: 0, Address: "10.0.0.2"}, {Index: 1, Address: "10.0.0.1"}}}}},
		"a node without fabric":                 {domainWith("u", outside, peer), []imexd.Group{{}}},
		"a node that is not numbered yet":       {domainWith("u", peer), nil},
		"an entry of the node's earlier daemon": {domainWith("u", renewed, peer), nil},
		"another domain of the same name":       {domainWith("v", own, peer), nil},
		"a domain that is gone":                 {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []imexd.Group
			m := &membership{node: "a", address: "10.0.0.1", uid: "u", join: func(g imexd.Group) { got = append(got, g) }}
			m.follow(t.Context(), c.domain)
			m.follow(t.Context(), c.domain) // the same value again causes no event
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
