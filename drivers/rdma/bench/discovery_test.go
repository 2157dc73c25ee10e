package bench_test

import (
	"fmt"
	"testing"

	"gpufabric.io/drivers/rdma/inventory"
)

// BenchmarkDiscovery reads nodes of 8, 64 and 512 functions, as compare.sh does.
func BenchmarkDiscovery(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tree := functions(b, n)
			for b.Loop() {
				found, err := inventory.Discover(b.Context(), inventory.Roots{Sysfs: tree.Sys})
				if err != nil || len(found.HCAs) != n {
					b.Fatalf("found %v, %v", found, err)
				}
			}
		})
	}
}
