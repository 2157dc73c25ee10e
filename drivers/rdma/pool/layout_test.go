package pool_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/rdma/pool"
)

func TestDivideSpreadsUnitsOverHCAs(t *testing.T) {
	for _, test := range []struct {
		name string
		from pool.Layout
		n    int
		hcas []string
		want pool.Layout
	}{
		{"neighbouring units are on different HCAs", nil, 5, []string{"b", "a"}, pool.Layout{"a", "b", "a", "b", "a"}},
		{"nothing changes where nothing changed", pool.Layout{"b", "a", "b"}, 3, []string{"a", "b"}, pool.Layout{"b", "a", "b"}},
		{"a new HCA takes the highest units", pool.Layout{"a", "a", "a", "a"}, 4, []string{"a", "b"}, pool.Layout{"a", "a", "b", "b"}},
		{"only the units of an HCA that is gone move", pool.Layout{"a", "b", "a", "b"}, 4, []string{"a", "c"}, pool.Layout{"a", "c", "a", "c"}},
		{"more units leave the old ones", pool.Layout{"b", "a"}, 4, []string{"a", "b"}, pool.Layout{"b", "a", "a", "b"}},
		{"fewer units cut off the highest", pool.Layout{"a", "b", "a", "b"}, 2, []string{"a", "b"}, pool.Layout{"a", "b"}},
		{"more HCAs than units", nil, 2, []string{"a", "b", "c"}, pool.Layout{"a", "b"}},
		{"no units", nil, 0, []string{"a"}, pool.Layout{}},
		{"no HCAs", pool.Layout{"a"}, 4, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.from.Divide(test.n, test.hcas)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLayoutDividesEvenlyAndMovesFewUnits(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	all := []string{"a", "b", "c", "d", "e", "f"}
	var layout pool.Layout
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
