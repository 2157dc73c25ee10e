// Package monitor exports what containers may use of shared GPUs and what they do use, under the metric names that existing
// dashboards of the public monitor expect (all with the constant label zone="vGPU").
//
// A container's series exist from the moment the scheduler gave it a share, with a use of zero: a container that has not called
// CUDA yet still has a limit. Use comes from the driver where that limits the container, else from the limiter's shared region; see
// package region for how far that is trusted.
package monitor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/gpu/limiter/region"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/figures"
)

// Container is a container with shares.
type Container struct {
	Namespace, Pod, PodUID, Name string
	Shares                       []annotation.Share
}

// Source knows the node.
type Source interface {
	// Figures returns the figures of the shared GPUs as last read, and whether they are current. Before the first reading the factor
	// is 0.
	Figures() (known figures.Figures, now bool)
	// Containers returns those of pods on the node that were given shares.
	Containers() []Container
}

// Options say what is exported and how.
type Options struct {
	Source Source
	// Directory is where the containers' accounting directories are, POD-UID_CONTAINER each.
	Directory string
	// ByteLabels adds Device_memory_desc_of_container as in the public monitor, with byte counts as labels: each change of use makes a
	// new series.
	ByteLabels bool
	Now        func() time.Time
}

// Collector is a prometheus.Collector. It reads during each scrape, and keeps nothing that it read.
type Collector struct {
	options Options
	running readings

	hostMemory, hostCores                        *prometheus.Desc
	used, limit, utilization, lastKernel, memory *prometheus.Desc
	drift, unreadable, answers                   *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// New makes a Collector.
func New(o Options) *Collector {
	zone := prometheus.Labels{"zone": "vGPU"}
	host := []string{"deviceidx", "deviceuuid"}
	share := []string{"podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid"}
	bytes := []string{"context", "module", "data", "offset"}
	describe := func(name, help string, labels []string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, zone)
	}
	return &Collector{
		options:     o,
		hostMemory:  describe("HostGPUMemoryUsage", "Memory in use on a GPU, in bytes.", host),
		hostCores:   describe("HostCoreUtilization", "Share of time in which a kernel ran on a GPU, in percent.", host),
		used:        describe("vGPU_device_memory_usage_in_bytes", "Memory that a container uses of its share of a GPU, in bytes.", share),
		limit:       describe("vGPU_device_memory_limit_in_bytes", "Memory of a container's share of a GPU, in bytes.", share),
		utilization: describe("Device_utilization_desc_of_container", "Share of a GPU's SMs that a container uses, in percent.", share),
		lastKernel:  describe("Device_last_kernel_of_container", "Time since a container's last kernel launch, in seconds.", share),
		memory: describe("Device_memory_desc_of_container", "Memory that a container uses of its share of a GPU, in bytes, by kind.",
			slices.Concat(share, bytes)),
		drift: prometheus.NewDesc("gpufabric_vgpu_memory_limit_drift_bytes",
			"Limit that holds inside a container, less the limit that the scheduler gave it, in bytes; 0 where they agree.", share, nil),
		unreadable: prometheus.NewDesc("gpufabric_vgpu_regions_unreadable", "Containers whose accounting could not be read at this scrape.", nil,
			nil),
		answers: prometheus.NewDesc("gpufabric_vgpu_plugin_answers",
			"1 where vgpu-plugin gave the GPUs' figures at this scrape, 0 where the node's own series are missing for want of them.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.hostMemory, c.hostCores, c.used, c.limit, c.utilization, c.lastKernel, c.memory, c.drift,
		c.unreadable, c.answers} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	defer c.running.begin(c.options.Now())()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	known, now := c.options.Source.Figures()
	gauge(c.answers, map[bool]float64{true: 1}[now])
	totals := map[string]uint64{}
	for _, gpu := range known.GPUs {
		totals[gpu.UUID] = gpu.MemoryTotal
		if !now {
			continue
		}
		gauge(c.hostMemory, float64(gpu.MemoryUsed), strconv.Itoa(gpu.Index), gpu.UUID)
		gauge(c.hostCores, float64(gpu.Utilization), strconv.Itoa(gpu.Index), gpu.UUID)
	}
	unreadable, factor := 0, uint64(known.Factor) //nolint:gosec // not negative
	if factor == 0 {
		return // the size of a unit of memory is not known yet
	}
	for _, container := range c.options.Source.Containers() {
		read, err := c.read(container)
		if err != nil {
			unreadable++
		}
		for i, share := range container.Shares {
			labels := []string{container.Namespace, container.Pod, container.Name, strconv.Itoa(i), share.UUID}
			limit := uint64(share.Memory) * factor << 20
			if share.Memory == 0 {
				limit = totals[share.UUID]
			}
			used, counted := known.UsedBy(container.PodUID, container.Name, share.UUID)
			if counted && !now {
				gauge(c.limit, float64(limit), labels...) // what it uses is not known
				continue
			}
			cores, told := known.CoresOf(container.PodUID, container.Name, share.UUID)
			if told && now {
				gauge(c.utilization, cores, labels...)
			}
			c.share(gauge, labels, share.UUID, limit, read, used, told)
		}
	}
	gauge(c.unreadable, float64(unreadable))
}

// share exports one share. read is nil before the container's limiter has started, and where it has none. The limiter lists GPUs in
// CUDA's order for the container, not the scheduler's, so GPUs are matched by UUID. used is the driver's figure. told says that the
// node itself counts the GPU's time.
func (c *Collector) share(gauge func(*prometheus.Desc, float64, ...string), labels []string, uuid string, limit uint64,
	read *region.Region, used uint64, told bool) {
	gauge(c.limit, float64(limit), labels...)
	i := -1
	if read != nil {
		i = slices.IndexFunc(read.Devices, func(d region.Device) bool { return d.UUID == uuid })
	}
	if i < 0 {
		gauge(c.used, float64(used), labels...)
		if !told {
			gauge(c.utilization, 0, labels...)
		}
		return
	}
	gauge(c.used, float64(read.Used(i)), labels...)
	var utilization uint64
	var sum region.Memory
	for _, process := range read.Processes {
		sum.Context += process.Memory[i].Context
		sum.Module += process.Memory[i].Module
		sum.Data += process.Memory[i].Data
		if process.Utilization != nil {
			// A tenant writes this number; no container can use more than the whole GPU.
			utilization += min(process.Utilization[i], 100)
		}
	}
	if !told {
		gauge(c.utilization, float64(min(utilization, 100)), labels...)
	}
	if read.LastKernel > 0 {
		gauge(c.lastKernel, max(0, c.options.Now().Sub(time.Unix(read.LastKernel, 0)).Seconds()), labels...)
	}
	if inside := read.Devices[i].MemoryLimit; inside > 0 {
		gauge(c.drift, float64(inside)-float64(limit), labels...)
	}
	if c.options.ByteLabels {
		number := func(n uint64) string { return strconv.FormatUint(n, 10) }
		gauge(c.memory, float64(read.Used(i)), slices.Concat(labels, []string{number(sum.Context), number(sum.Module), number(sum.Data), "0"})...)
	}
}

// mostFiles is how many files of a container's directory are read: the limiter makes one, and other files of a tenant must not slow
// down a scrape.
const mostFiles = 16

// read finds a container's region: the first valid file. No region and no error: the container has not called CUDA.
func (c *Collector) read(container Container) (*region.Region, error) {
	directory := filepath.Join(c.options.Directory, container.PodUID+"_"+container.Name)
	opened, err := os.Open(directory)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	defer func() { _ = opened.Close() }()
	names, err := opened.Readdirnames(mostFiles)
	if err != nil || len(names) == 0 {
		return nil, nil //nolint:nilerr // the end of an empty directory
	}
	var last error
	for _, name := range names {
		if filepath.Ext(name) != ".cache" {
			continue
		}
		read, err := region.Read(filepath.Join(directory, name))
		if err == nil {
			err = read.KeepLiving(directory)
		}
		if err == nil {
			return read, nil
		}
		last = err
	}
	return nil, last
}
