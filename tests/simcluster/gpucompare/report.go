package gpucompare

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Report writes a table: for each quantity both drivers' medians and highest, and the ratio of the medians.
func Report(w io.Writer, results []*Result) error {
	if len(results) != 2 {
		return fmt.Errorf("a comparison has two results, not %d", len(results))
	}
	a, b := results[0], results[1]
	var table strings.Builder
	fmt.Fprintf(&table, "| | n | %s, median (max) | %s, median (max) | %s / %s |\n|---|---:|---:|---:|---:|\n", a.Driver, b.Driver, b.Driver,
		a.Driver)
	line := func(name string, n int, format string, ours, ourMax, theirs, theirMax float64) {
		values := fmt.Sprintf("| %s | %d | %s (%s) | %s (%s) | %%.1f |\n", name, n, format, format, format, format)
		fmt.Fprintf(&table, values, ours, ourMax, theirs, theirMax, theirs/ours)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Times)) {
		x, y := a.Times[name], b.Times[name]
		line(name+" (ms)", len(x), "%.1f", quantile(x, 0.5), quantile(x, 1), quantile(y, 0.5), quantile(y, 1))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Requests)) {
		fmt.Fprintf(&table, "| %s | | %.2f | %.2f | %.1f |\n", name, a.Requests[name], b.Requests[name], b.Requests[name]/a.Requests[name])
	}
	const mib = 1024
	for _, when := range slices.Sorted(maps.Keys(a.Memory)) {
		x, y := a.Memory[when], b.Memory[when]
		for _, m := range []struct {
			name         string
			ours, theirs int
		}{{"anonymous memory", x.anonymous, y.anonymous}, {"all resident memory", x.resident, y.resident}} {
			fmt.Fprintf(&table, "| %s, %s (MiB) | 1 | %.1f | %.1f | %.1f |\n", m.name, when, float64(m.ours)/mib, float64(m.theirs)/mib,
				float64(m.theirs)/float64(m.ours))
		}
	}
	_, err := io.WriteString(w, table.String())
	return err
}
