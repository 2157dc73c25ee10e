package bench

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// series is a line of the plot.
type series struct {
	name  string
	color color.Color
	of    func(Result) float64
}

// Plot draws how long things take by the number of nodes, both on logarithmic axes, into an SVG file.
func Plot(path string, results []Result) error {
	p := plot.New()
	p.Title.Text = "A simulated cluster, all racks' compute domains formed at once"
	p.X.Label.Text, p.Y.Label.Text = "nodes", "seconds"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var ticks []plot.Tick
	for _, r := range results {
		ticks = append(ticks, plot.Tick{Value: float64(r.Nodes), Label: fmt.Sprint(r.Nodes)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(ticks), plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for _, s := range []series{
		{"domain created to Ready, median", color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff},
			func(r Result) float64 { return quantile(r.Domains, 0.5) }},
		{"domain created to Ready, max", color.RGBA{R: 0xd6, G: 0x27, B: 0x28, A: 0xff},
			func(r Result) float64 { return quantile(r.Domains, 1) }},
		{"all ResourceSlices published", color.RGBA{R: 0x2c, G: 0xa0, B: 0x2c, A: 0xff}, func(r Result) float64 { return r.Published }},
		{"last daemon started to Ready, median", color.RGBA{R: 0xff, G: 0x7f, B: 0x0e, A: 0xff},
			func(r Result) float64 { return quantile(r.LastDaemon, 0.5) }},
		{"everything deleted", color.RGBA{R: 0x94, G: 0x67, B: 0xbd, A: 0xff}, func(r Result) float64 { return quantile(r.Deleted, 0.5) }},
	} {
		var points plotter.XYs
		for _, r := range results {
			if y := s.of(r); y > 0 {
				points = append(points, plotter.XY{X: float64(r.Nodes), Y: y})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("plot %s: %w", s.name, err)
		}
		line.Color, dots.Color = s.color, s.color
		p.Add(line, dots)
		p.Legend.Add(s.name+": "+growth(results, s.of), line, dots)
	}
	if err := p.Save(18*vg.Centimeter, 12*vg.Centimeter, path); err != nil {
		return fmt.Errorf("write the plot %s: %w", path, err)
	}
	return nil
}
