package inventory

import "testing"

// TestMIGProfileNameHasTheDriversSize compares sizes in MiB with the names that drivers give them.
func TestMIGProfileNameHasTheDriversSize(t *testing.T) {
	for _, c := range []struct {
		model    string
		total    uint64
		sizes    []uint64
		expected []int
	}{
		{"A100-40", 40960, []uint64{4864, 9856, 19968, 40448}, []int{5, 10, 20, 40}},
		{"A100-80", 81920, []uint64{9728, 19968, 40192, 80896}, []int{10, 20, 40, 80}},
		{"H100-80", 81559, []uint64{9984, 20096, 40448, 81152}, []int{10, 20, 40, 80}},
		{"H200", 143771, []uint64{16384, 33280, 71168, 143360}, []int{18, 35, 71, 141}},
		{"B200", 183359, []uint64{22528, 45312, 92160, 184320}, []int{23, 45, 90, 180}},
		{"GB200", 189471, []uint64{22528, 46592, 95232, 189471}, []int{23, 47, 93, 186}},
	} {
		for i, size := range c.sizes {
			if got := gigabytes(size<<20, c.total<<20); got != c.expected[i] {
				t.Errorf("%s: %d MiB is named %dgb, want %dgb", c.model, size, got, c.expected[i])
			}
		}
	}
}
