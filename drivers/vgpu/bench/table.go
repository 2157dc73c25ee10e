package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// row is a row of the table.
type row struct {
	what string
	of   func(figures) float64
}

const mib = 1 << 20

var rows = []row{
	{"memory that cuMemGetInfo shows (MiB)", func(f figures) float64 { return float64(f.Total) / mib }},
	{"memory that could be had, in steps of 2 MiB (MiB)", func(f figures) float64 { return float64(f.Had) / mib }},
	{"allocate 1 MiB and free it (ns)", func(f figures) float64 { return f.Pair }},
	{"launch an empty kernel (ns)", func(f figures) float64 { return f.Launch }},
	{"refuse an allocation (ns)", func(f figures) float64 { return f.Refuse }},
}

// Write prints the table: the median of the rounds, and their range.
func (r *Result) Write(to io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s, driver %s: a limit of %d MiB\n\n", r.product, r.gpu, r.driver, r.bytes/mib)
	cells := [][]string{{"median (least to most)"}}
	for _, w := range r.ways {
		if w.absent == nil {
			cells[0] = append(cells[0], w.name)
		}
	}
	for _, row := range rows {
		line := []string{row.what}
		for _, w := range r.ways {
			if w.absent == nil {
				line = append(line, cell(w.rounds, row.of))
			}
		}
		cells = append(cells, line)
	}
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			widths[i] = max(widths[i], len(c))
		}
	}
	for _, line := range cells {
		for i, c := range line {
			if i == 0 {
				fmt.Fprintf(&text, "%-*s", widths[i], c)
				continue
			}
			fmt.Fprintf(&text, "   %*s", widths[i], c)
		}
		text.WriteString("\n")
	}
	text.WriteString("\nWithout a limit no more than the limit is allocated. Cores are not measured.\n")
	for _, w := range r.ways {
		if w.absent != nil {
			fmt.Fprintf(&text, "%s: %v\n", w.name, w.absent)
		}
	}
	_, err := io.WriteString(to, text.String())
	return err
}

// cell is the median of some values, and their range where they differ.
func cell(rounds []figures, of func(figures) float64) string {
	var values []float64
	for _, f := range rounds {
		values = append(values, of(f))
	}
	slices.Sort(values)
	least, median, most := values[0], values[len(values)/2], values[len(values)-1]
	switch {
	case most == 0:
		return "-"
	case least == most:
		return fmt.Sprintf("%.0f", median)
	}
	return fmt.Sprintf("%.0f (%.0f to %.0f)", median, least, most)
}
