package scheduling

import (
	"fmt"
	"image/color"
	"maps"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// baseline is the row that the others are compared with.
const baseline = "public-whole"

// Merge replaces earlier results of the same row, size and fill.
func Merge(before, found []Result) []Result {
	same := func(a, b Result) bool {
		return a.Row == b.Row && a.Nodes == b.Nodes && int(100*a.Fill) == int(100*b.Fill)
	}
	kept := slices.DeleteFunc(slices.Clone(before), func(old Result) bool {
		return slices.ContainsFunc(found, func(r Result) bool { return same(old, r) })
	})
	return append(kept, found...)
}

// Report is a table for each size and fill.
func Report(results []Result) string {
	var b strings.Builder
	titles, place := map[string]string{}, map[string]int{}
	for i, row := range Rows() {
		titles[row.Name], place[row.Name] = row.Title, i
	}
	type group struct {
		nodes int
		fill  float64
	}
	groups := map[group][]Result{}
	for _, r := range results {
		groups[group{r.Nodes, r.Fill}] = append(groups[group{r.Nodes, r.Fill}], r)
	}
	order := slices.SortedFunc(maps.Keys(groups), func(x, y group) int {
		if x.nodes != y.nodes {
			return x.nodes - y.nodes
		}
		return int(100*x.fill) - int(100*y.fill)
	})
	for _, g := range order {
		began, ended := groups[g][0], groups[g][0]
		lowest, highest := began.Load, began.Load
		for _, r := range groups[g] {
			if r.Taken.Before(began.Taken) {
				began = r
			}
			if r.Taken.After(ended.Taken) {
				ended = r
			}
			lowest, highest = min(lowest, r.Load), max(highest, r.Load)
		}
		fmt.Fprintf(&b, "\n## %d nodes, %d GPUs, %.0f %% given away\n\n%s to %s UTC, load average %.1f to %.1f.\n\n", g.nodes, 8*g.nodes,
			100*g.fill,
			began.Taken.Format(time.DateTime), ended.Taken.Format(time.TimeOnly), lowest, highest)
		b.WriteString("| what is published, and asked for | slices, devices | MB | pods/s | of the public driver's whole GPUs | rounds | " +
			"bound of made | p50, p99 (s) | CPU a pod (ms) | of the public driver's whole GPUs | scheduler (MiB) |\n")
		b.WriteString("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
		slices.SortFunc(groups[g], func(x, y Result) int { return place[x.Row] - place[y.Row] })
		for _, r := range groups[g] {
			ratio, processor := "", ""
			if r.Ratio > 0 {
				ratio, processor = fmt.Sprintf("%.2f", r.Ratio), fmt.Sprintf("%.2f", r.CPURatio)
			}
			fmt.Fprintf(&b, "| %s | %d, %d | %.2f | %.1f | %s | %d | %d of %d | %.2f, %.2f | %.1f | %s | %.0f |\n", titles[r.Row], r.Slices,
				r.Devices, float64(r.Bytes)/1e6,
				r.PodsPerSecond(), ratio, r.Rounds, r.Bound, r.Pods, r.P50, r.P99, 1000*r.CPU, processor, r.Memory)
		}
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// Plot draws pods per second by the number of nodes, both on logarithmic axes, into an SVG file. It uses clusters without
// allocated devices, and draws nothing where none was measured.
func Plot(path string, results []Result) error {
	p := plot.New()
	p.Title.Text = "Pods bound in a second, by what nodes of eight GPUs publish"
	p.X.Label.Text, p.Y.Label.Text = "nodes", "pods a second"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	var ticks []plot.Tick
	for _, r := range results {
		ticks = append(ticks, plot.Tick{Value: float64(r.Nodes), Label: fmt.Sprint(r.Nodes)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.Legend.Left = true
	p.Add(plotter.NewGrid())
	drawn := false
	for i, row := range Rows() {
		var points plotter.XYs
		for _, r := range results {
			if r.Row == row.Name && r.Fill == 0 && r.Bound > 0 {
				points = append(points, plotter.XY{X: float64(r.Nodes), Y: r.PodsPerSecond()})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("plot %s: %w", row.Name, err)
		}
		line.Color, dots.Color = colors[i%len(colors)], colors[i%len(colors)]
		p.Add(line, dots)
		drawn = true
		p.Legend.Add(row.Name, line, dots)
	}
	if !drawn {
		return nil // a logarithmic axis has no place without a point
	}
	if err := p.Save(18*vg.Centimeter, 14*vg.Centimeter, path); err != nil {
		return fmt.Errorf("write the plot %s: %w", path, err)
	}
	return nil
}

// colors of the lines.
var colors = []color.Color{
	color.RGBA{R: 0x7f, G: 0x7f, B: 0x7f, A: 0xff}, color.RGBA{A: 0xff}, color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff},
	color.RGBA{R: 0x2c, G: 0xa0, B: 0x2c, A: 0xff},
	color.RGBA{R: 0x98, G: 0xdf, B: 0x8a, A: 0xff}, color.RGBA{R: 0xff, G: 0x7f, B: 0x0e, A: 0xff},
	color.RGBA{R: 0xff, G: 0xbb, B: 0x78, A: 0xff},
	color.RGBA{R: 0xd6, G: 0x27, B: 0x28, A: 0xff}, color.RGBA{R: 0x94, G: 0x67, B: 0xbd, A: 0xff},
	color.RGBA{R: 0x8c, G: 0x56, B: 0x4b, A: 0xff},
	color.RGBA{R: 0xe3, G: 0x77, B: 0xc2, A: 0xff}, color.RGBA{R: 0xbc, G: 0xbd, B: 0x22, A: 0xff},
	color.RGBA{R: 0x17, G: 0xbe, B: 0xcf, A: 0xff},
}
