package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/memorylimits"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/settings"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// backend returns the mechanism that limits containers to their shares on this node. native is the reason why the driver cannot, nil if it
// can or if that is still unknown.
func (o *Options) backend(native error) (injection.Backend, error) {
	_, err := os.Stat(o.LimiterLibrary)
	return injection.Choose(o.Limits, o.LimiterDir, native, err == nil)
}

// openMemory makes the part that lets the driver limit containers' memory, with the stored records.
func (o *Options) openMemory(ctx context.Context, lib nvml.Interface) (*memorylimits.Keeper, error) {
	memory, unreadable, err := memorylimits.Open(memorylimits.Driver{NVML: lib,
		Cgroups: memorylimits.Tree{Root: o.Cgroups().Host, Self: filepath.Join(o.ProcRoot(), "self/cgroup")}}, o.stateFile("memory-limits"))
	for _, file := range unreadable {
		klog.FromContext(ctx).Error(file.Err, "The record of a limit of memory is lost: the limit stays until its container has ended",
			"what", file.String())
	}
	return memory, err
}

// native returns the reason why the driver does not limit the memory of containers with shares; nil: it does.
func (o *Options) native(memory *memorylimits.Keeper, config settings.Settings, gpus *sharedgpus.Set) error {
	switch {
	case o.RuntimeSocket == "":
		return errors.New("without NRI (--nri-socket) the creation of a container's cgroup is not reported")
	case config.MemoryScaling > 1:
		return fmt.Errorf("a memory scaling of %g exceeds the GPUs' memory, and the driver reserves all of it",
			config.MemoryScaling)
	}
	var uuids []string
	for _, card := range gpus.Cards {
		if card.Mode != annotation.ModeMIG {
			uuids = append(uuids, card.GPU.UUID)
		}
	}
	return memory.Available(uuids...)
}

// limiter chooses the backend of containers with shares, and installs our library on the node where it limits memory, or cores beside
// a driver that limits memory. native is the reason why the driver cannot limit memory, nil if it can. directory is the library's directory
// on the node; empty: there is none.
func (o *Options) limiter(ctx context.Context, native error) (backend injection.Backend, directory string, err error) {
	if backend, err = o.backend(native); err != nil {
		return "", "", err
	}
	if native != nil {
		klog.FromContext(ctx).Info("NVIDIA's driver does not limit the memory of containers here", "because", native.Error())
	}
	directory = o.LimiterDir
	_, missing := os.Stat(o.LimiterLibrary)
	if backend == injection.Native && missing != nil {
		klog.FromContext(ctx).Info("The cores of containers are not limited here: NVIDIA's driver limits memory alone",
			"because", missing.Error())
	}
	if backend == injection.Library || backend == injection.Native && missing == nil {
		directory = filepath.Join(o.StateDir, "lib")
		if err := limiter.Install(o.LimiterLibrary, directory, atomicfile.Writer{}); err != nil {
			return "", "", err
		}
	}
	klog.FromContext(ctx).Info("Limiting containers to their shares", "by", backend)
	return backend, directory, nil
}

// limited exports how many containers are limited by which backend.
type limited struct {
	book *holdings.Book
	desc *prometheus.Desc
}

var _ prometheus.Collector = limited{}

func newLimited(book *holdings.Book) limited {
	return limited{book, prometheus.NewDesc("gpufabric_vgpu_limited_containers",
		"Containers that hold shares of GPUs, by what holds them to these: native, library, hami-core, mig; none; whole, which needs nothing; "+
			"unknown.",
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
