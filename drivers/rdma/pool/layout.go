package pool

import (
	"cmp"
	"slices"
)

// Layout is the division of a pool: the HCA (by key) of each unit, by unit number.
type Layout []string

// Divide makes a layout of n units over the HCAs, evenly to within one. It moves as few units as possible from their HCA in l.
// Units of an HCA that is gone are moved. Without HCAs there are no units.
func (l Layout) Divide(n int, hcas []string) Layout {
	if len(hcas) == 0 {
		return nil
	}
	hcas = slices.Clone(hcas)
	slices.Sort(hcas)
	next := make(Layout, n)
	count := make(map[string]int, len(hcas))
	for _, h := range hcas {
		count[h] = 0
	}
	for i := range min(n, len(l)) {
		if _, here := count[l[i]]; here {
			next[i] = l[i]
			count[l[i]]++
		}
	}
	quota := quotas(n, hcas, count)
	// The highest numbers are released first: the kubelet allocates low ones first where no preference is given.
	for i := n - 1; i >= 0; i-- {
		if h := next[i]; h != "" && count[h] > quota[h] {
			next[i] = ""
			count[h]--
		}
	}
	// The free units go round the HCAs, so that neighbouring units are on different HCAs.
	turn := 0
	for i := range next {
		if next[i] != "" {
			continue
		}
		for count[hcas[turn%len(hcas)]] >= quota[hcas[turn%len(hcas)]] {
			turn++
		}
		next[i] = hcas[turn%len(hcas)]
		count[next[i]]++
		turn++
	}
	return next
}

// quotas reports how many units each HCA has: n/len, and one more while units are left over, first for those that have the most now.
func quotas(n int, hcas []string, have map[string]int) map[string]int {
	quota := make(map[string]int, len(hcas))
	order := slices.Clone(hcas)
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(have[b], have[a]) })
	extra := n % len(hcas)
	for i, h := range order {
		quota[h] = n / len(hcas)
		if i < extra {
			quota[h]++
		}
	}
	return quota
}
