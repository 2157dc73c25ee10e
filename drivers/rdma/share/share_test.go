package share_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/share"
)

func TestDivide(t *testing.T) {
	for _, test := range []struct {
		name string
		from share.Layout
		n    int
		hcas []string
		want share.Layout
	}{
		{"neighbouring units are on different HCAs", nil, 5, []string{"b", "a"}, share.Layout{"a", "b", "a", "b", "a"}},
		{"nothing changes where nothing changed", share.Layout{"b", "a", "b"}, 3, []string{"a", "b"}, share.Layout{"b", "a", "b"}},
		{"a new HCA takes the highest units", share.Layout{"a", "a", "a", "a"}, 4, []string{"a", "b"}, share.Layout{"a", "a", "b", "b"}},
		{"only the units of an HCA that is gone move", share.Layout{"a", "b", "a", "b"}, 4, []string{"a", "c"}, share.Layout{"a", "c", "a", "c"}},
		{"more units leave the old ones", share.Layout{"b", "a"}, 4, []string{"a", "b"}, share.Layout{"b", "a", "a", "b"}},
		{"fewer units cut off the highest", share.Layout{"a", "b", "a", "b"}, 2, []string{"a", "b"}, share.Layout{"a", "b"}},
		{"more HCAs than units", nil, 2, []string{"a", "b", "c"}, share.Layout{"a", "b"}},
		{"no units", nil, 0, []string{"a"}, share.Layout{}},
		{"no HCAs", share.Layout{"a"}, 4, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.from.Divide(test.n, test.hcas)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestADivisionIsEvenAndMovesAsFewUnitsAsItMust(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	all := []string{"a", "b", "c", "d", "e", "f"}
	var layout share.Layout
	for range 2000 {
		n := random.IntN(40)
		hcas := slices.Clone(all)
		random.Shuffle(len(hcas), func(i, j int) { hcas[i], hcas[j] = hcas[j], hcas[i] })
		hcas = hcas[:1+random.IntN(len(hcas))]
		next := layout.Divide(n, hcas)
		if len(next) != n {
			t.Fatalf("%d units of %d", len(next), n)
		}
		had, has := map[string]int{}, map[string]int{}
		moved := 0
		for i, h := range next {
			has[h]++
			if !slices.Contains(hcas, h) {
				t.Fatalf("unit %d is on %q, which is not among %v", i, h, hcas)
			}
			if i < len(layout) && slices.Contains(hcas, layout[i]) {
				had[layout[i]]++
				if layout[i] != h {
					moved++
				}
			}
		}
		must, ones := 0, n%len(hcas)
		counts := make([]int, 0, len(hcas))
		for _, h := range hcas {
			counts = append(counts, had[h])
			if has[h] != n/len(hcas) && has[h] != n/len(hcas)+1 {
				t.Fatalf("%s has %d of %d units over %d HCAs", h, has[h], n, len(hcas))
			}
		}
		slices.SortFunc(counts, func(a, b int) int { return b - a })
		for i, count := range counts {
			quota := n / len(hcas)
			if i < ones {
				quota++
			}
			must += max(count-quota, 0)
		}
		if moved != must {
			t.Fatalf("%d units moved where %d had to: %v to %v over %v", moved, must, layout, next, hcas)
		}
		layout = next
	}
}

func TestALayoutOutlivesARestart(t *testing.T) {
	dir := t.TempDir()
	store, err := share.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := store.Load("rdma/a"); !cmp.Equal(kept, share.Kept{}) || err != nil {
		t.Errorf("without a file: got %v, %v", kept, err)
	}
	want := share.Kept{
		Boot: "b1", Units: share.Layout{"0000:3b:00.0", "0000:5e:00.0"},
		Pool: v1alpha1.RDMAPoolConfig{ResourceName: "a", RDMAHCAMax: 2, Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}}},
	}
	if err := store.Save("rdma/a", want); err != nil {
		t.Fatal(err)
	}
	store, err = share.Open(dir)
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

func TestAFileOfVersion1HoldsTheUnitsAlone(t *testing.T) {
	dir := t.TempDir()
	store, err := share.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	body := `["0000:3b:00.0"]`
	if err := os.WriteFile(filepath.Join(dir, "rdma_a.layout"), fmt.Appendf(nil, "gpufabric-layout 1 sha256:%x\n%s\n", sha256.Sum256([]byte(body)), body), 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := store.Load("rdma/a")
	if want := (share.Kept{Units: share.Layout{"0000:3b:00.0"}}); err != nil || !cmp.Equal(want, got) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestADamagedFileIsSetAside(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func([]byte) []byte
		reason string
	}{
		{"empty", func([]byte) []byte { return nil }, "first line"},
		{"cut off", func(b []byte) []byte { return b[:len(b)-5] }, "checksum"},
		{"changed", func(b []byte) []byte { return []byte(strings.Replace(string(b), "0000:3b", "0000:3c", 1)) }, "checksum"},
		{"of a later version", func(b []byte) []byte { return []byte(strings.Replace(string(b), "layout 2", "layout 3", 1)) }, "first line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			store, err := share.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Save("rdma/a", share.Kept{Units: share.Layout{"0000:3b:00.0"}}); err != nil {
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
			if kept, err := store.Load("rdma/a"); kept.Units != nil || err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("got %v, %v", kept, err)
			}
			if kept, err := store.Load("rdma/a"); kept.Units != nil || err != nil {
				t.Errorf("the second time: got %v, %v", kept, err)
			}
		})
	}
}
