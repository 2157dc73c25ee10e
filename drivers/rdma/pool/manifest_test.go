package pool_test

import (
	"testing"

	"gpufabric.io/drivers/rdma/pool"
)

func FuzzReadManifest(f *testing.F) {
	f.Add([]byte("apiVersion: gpufabric.io/v1alpha1\nkind: RDMAPool\nmetadata: {name: a}\nspec: {resourceName: a, devices: [ib0]}\n"))
	f.Add([]byte("kind: List\nitems: [{kind: Node, apiVersion: v1, metadata: {name: n, labels: {a: b}}}, null, 3]\n---\n---\n- x"))
	f.Add([]byte("{\"kind\": \"RDMAPoolList\", \"items\": [{\"kind\": \"RDMAPool\"}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := pool.ReadManifest(data)
		if err != nil {
			return
		}
		listing, err := m.Listing("n", map[string]string{"a": "b"})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range listing.Pools {
			if p.Name == "" {
				t.Errorf("a pool without a name: %+v", p)
			}
		}
	})
}
