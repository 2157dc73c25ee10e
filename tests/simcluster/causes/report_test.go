//go:build causes

package causes

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/doctor/findings"
)

const (
	begin = "<!-- causes on the simulated cluster -->\n"
	end   = "<!-- end of causes on the simulated cluster -->\n"
)

// parts are those of the table, in its order.
func parts() []string {
	return []string{"install", "scheduling", "GPU", "MIG and shares", "compute domain", "RDMA"}
}

// report writes the table of answers: into the page where one is named, else into the log.
func report(t *testing.T, all []answer) {
	t.Helper()
	right, wrong, both := 0, 0, 0
	slices.SortStableFunc(all, func(a, b answer) int {
		return cmp.Compare(slices.Index(parts(), a.part), slices.Index(parts(), b.part))
	})
	var table strings.Builder
	table.WriteString("| part | cause | first code | behind it | found | seconds until then | seconds of the command |\n")
	table.WriteString("|---|---|---|---|---|---:|---:|\n")
	for _, a := range all {
		found := "yes"
		switch {
		case !a.right:
			found = fmt.Sprintf("no: `%s`", a.first)
		case len(a.wrong) > 0:
			found = fmt.Sprintf("yes, after `%s`", strings.Join(a.wrong, "`, `"))
		}
		if a.right {
			right++
		}
		if !a.right && a.first != "" || len(a.wrong) > 0 {
			wrong++
		}
		if len(a.behind) > 0 {
			both++
		}
		behind := ""
		if len(a.behind) > 0 {
			behind = "`" + strings.Join(a.behind, "`, `") + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | [`%s`](../troubleshooting.md#%s) | %s | %s | %.1f | %.2f |\n", a.part, a.name, a.code,
			findings.Anchor(a.code), behind, found, a.reacted.Seconds(), a.took.Seconds())
	}
	text := fmt.Sprintf("`make test-causes`, %s, %d CPUs: %d causes, %d of them two at once; the first cause right in %d, a wrong one said "+
		"in %d.\n\n%s", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), len(all), both, right, wrong, table.String())
	if *page == "" {
		t.Log(text)
		return
	}
	content, err := os.ReadFile(*page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, opened := strings.Cut(string(content), begin)
	_, after, closed := strings.Cut(rest, end)
	if !opened || !closed {
		t.Fatalf("%s has no place for the table", *page)
	}
	if err := os.WriteFile(*page, []byte(before+begin+text+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
