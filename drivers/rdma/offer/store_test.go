package offer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

func TestStoreKeepsALayoutOverARestart(t *testing.T) {
	dir := t.TempDir()
	store, err := offer.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := store.Load("rdma/a"); !cmp.Equal(kept, offer.Kept{}) || err != nil {
		t.Errorf("without a file: got %v, %v", kept, err)
	}
	want := offer.Kept{
		Boot: "b1", Units: pool.Layout{"0000:3b:00.0", "0000:5e:00.0"},
		Pool: v1alpha1.RDMAPoolConfig{ResourceName: "a", RDMAHCAMax: 2, Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}}},
	}
	if err := store.Save("rdma/a", want); err != nil {
		t.Fatal(err)
	}
	store, err = offer.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.Load("rdma/a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestStoreSetsADamagedFileAside(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func([]byte) []byte
		reason string
	}{
		{"empty", func([]byte) []byte { return nil }, "not one JSON object"},
		{"cut off", func(b []byte) []byte { return b[:len(b)-5] }, "not one JSON object"},
		{"changed", func(b []byte) []byte { return []byte(strings.Replace(string(b), "0000:3b", "0000:3c", 1)) }, "checksum"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			store, err := offer.OpenStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Save("rdma/a", offer.Kept{Units: pool.Layout{"0000:3b:00.0"}}); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "rdma_a.layout")
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, test.damage(content), 0o640); err != nil {
				t.Fatal(err)
			}
			if store, err = offer.OpenStore(dir); err != nil {
				t.Fatal(err)
			}
			if kept, err := store.Load("rdma/a"); kept.Units != nil || err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("got %v, %v", kept, err)
			}
			if kept, err := store.Load("rdma/a"); kept.Units != nil || err != nil {
				t.Errorf("the second time: got %v, %v", kept, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "unreadable/rdma_a.layout")); err != nil {
				t.Error(err)
			}
		})
	}
}
