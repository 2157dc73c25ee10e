package bench

import (
	"fmt"
	"io"
	"math"
	"runtime"
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
	{fmt.Sprintf("launch a graph of %d of them (ns)", graphKernels), func(f figures) float64 { return f.Graph }},
	{"refuse an allocation (ns)", func(f figures) float64 { return f.Refuse }},
}

// Write prints the tables: for memory and launches the median of the rounds, and their range.
func (r *Result) Write(to io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s, driver %s, CUDA %s", r.product, r.gpu, r.driver, r.cuda)
	if r.library != "" {
		fmt.Fprintf(&text, "\nlibrary %s", r.library)
	}
	if r.others > 0 {
		fmt.Fprintf(&text, "\nOther processes use this GPU: %d. Their work is in all figures.", r.others)
	}
	fmt.Fprintf(&text, "\n\nMemory and launches, with a limit of %d MiB\n\n", r.bytes/mib)
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
	align(&text, cells)
	text.WriteString("\nWithout a limit no more than the limit is allocated.\n")
	for _, w := range r.ways {
		if w.absent != nil {
			fmt.Fprintf(&text, "%s: %v\n", w.name, w.absent)
		}
	}
	r.cores.write(&text)
	_, err := io.WriteString(to, text.String())
	return err
}

// goal is the allowed distance from a percentage, in points.
const goal = 3

// write prints the table of cores.
func (s *shares) write(text *strings.Builder) {
	if len(s.rows) == 0 {
		fmt.Fprintf(text, "cores: %v\n", s.absent)
		return
	}
	fmt.Fprintf(text, "\nCores, %d s each, by kernels of %.2f ms\n\n", s.seconds, float64(s.kernel)/1e6)
	cells := [][]string{{"percent", "limit", "had", "off", "charged"}}
	most := s.rows[0]
	for _, k := range s.rows {
		name := k.of.String()
		if k.which > 0 {
			name = "  the other one"
		}
		cells = append(cells, []string{name, fmt.Sprint(k.of.Cores[k.which]), fmt.Sprintf("%.1f", k.had), fmt.Sprintf("%+.1f", k.off()),
			fmt.Sprintf("%.1f", k.charged)})
		if math.Abs(k.off()) > math.Abs(most.off()) {
			most = k
		}
	}
	align(text, append(cells, []string{"no limit, measured again", "-", fmt.Sprintf("%.1f", s.again), "-", "-"}))
	text.WriteString("\n100 % is what a process without a limit did in the same time, before. Charged is the GPU's time as the " +
		"library counts it.\n")
	kept := "is kept"
	if math.Abs(most.off()) > goal {
		kept = "is missed"
	}
	fmt.Fprintf(text, "Most off is %+.1f points (%d %% in: %s): the goal of %d points %s.\n", most.off(), most.of.Cores[most.which],
		most.of, goal, kept)
	if processors := runtime.NumCPU(); max(s.loads[0], s.loads[1]) > float64(processors) {
		fmt.Fprintf(text, "The machine's load was %.1f at the beginning and %.1f at the end, and it has %d processors: processes waited "+
			"for one, and the GPU for them. Measure again when it is below.\n", s.loads[0], s.loads[1], processors)
	}
	if math.Abs(s.again-100) > 1 {
		fmt.Fprintf(text, "The GPU or its machine was not as fast all the time: what is measured again should be 100. Do not believe "+
			"differences smaller than %.0f points.\n", math.Ceil(math.Abs(s.again-100)))
	}
}

// align writes the cells of a table: the first column left-aligned, the others right-aligned.
func align(text *strings.Builder, cells [][]string) {
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			widths[i] = max(widths[i], len(c))
		}
	}
	for _, line := range cells {
		for i, c := range line {
			if i == 0 {
				fmt.Fprintf(text, "%-*s", widths[i], c)
				continue
			}
			fmt.Fprintf(text, "   %*s", widths[i], c)
		}
		text.WriteString("\n")
	}
}

// cell is the median of values, and their range if they differ.
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
