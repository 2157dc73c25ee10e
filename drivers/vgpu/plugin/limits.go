package plugin

import (
	"context"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
)

// backend is what holds containers to their shares on this node.
func (o *Options) backend() (injection.Backend, error) {
	_, err := os.Stat(o.LimiterLibrary)
	return injection.Choose(o.Limits, o.LimiterDir, err == nil)
}

// limiter chooses what holds containers to their shares, and puts its library on the node where it is ours. directory is where the library
// stands on the node.
func (o *Options) limiter(ctx context.Context) (backend injection.Backend, directory string, err error) {
	if backend, err = o.backend(); err != nil {
		return "", "", err
	}
	directory = o.LimiterDir
	if backend == injection.Library {
		directory = filepath.Join(o.StateDir, "lib")
		if err := limiter.Install(o.LimiterLibrary, directory, atomicfile.Writer{}); err != nil {
			return "", "", err
		}
	}
	klog.FromContext(ctx).Info("Containers are held to their shares", "by", backend)
	return backend, directory, nil
}

// limited exports how many containers are held to their shares by what.
type limited struct {
	book *holdings.Book
	desc *prometheus.Desc
}

var _ prometheus.Collector = limited{}

func newLimited(book *holdings.Book) limited {
	return limited{book, prometheus.NewDesc("gpufabric_vgpu_limited_containers",
		"Containers that hold shares of GPUs, by what holds them to these: library, hami-core, mig; none; whole, which needs nothing; unknown.",
		[]string{"by"}, nil)}
}

// Describe implements prometheus.Collector.
func (l limited) Describe(to chan<- *prometheus.Desc) { to <- l.desc }

// Collect implements prometheus.Collector.
func (l limited) Collect(to chan<- prometheus.Metric) {
	for by, count := range l.book.Limited() {
		to <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(count), by)
	}
}
