// Package monitor exports the limits and the use of containers on shared GPUs, under the metric names that existing
// dashboards of the public monitor expect (all with the constant label zone="vGPU").
//
// A container's series exist from the moment the scheduler gave it a share, with a use of zero: a container that has not called
// CUDA yet still has a limit. Use comes from the driver where that limits the container, else from the account of our library, else
// from the limiter's shared region; see packages account and region for how far these are trusted.
package monitor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/gpu/limiter/region"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/figures"
)

// Container is a container with shares.
type Container struct {
	Namespace, Pod, PodUID, Name string
	Shares                       []annotation.Share
}

// Source reads the node.
type Source interface {
	// Figures returns the figures of the shared GPUs as last read, and whether they are current. Before the first reading the factor
	// is 0.
	Figures() (known figures.Figures, now bool)
	// Containers returns those of pods on the node that were given shares.
	Containers() []Container
}

// Options select the metrics and their source.
type Options struct {
	Source Source
	// Directory is where the containers' accounting directories are, POD-UID_CONTAINER each.
	Directory string
	// Accounts is where the accounts of our library are, in a directory of the same name each.
	Accounts string
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
		return // the size of a unit of memory is still unknown
	}
	for _, container := range c.options.Source.Containers() {
		counted, read, err := c.read(container)
		if err != nil {
			unreadable++
		}
		for i, share := range container.Shares {
			labels := []string{container.Namespace, container.Pod, container.Name, strconv.Itoa(i), share.UUID}
			limit := uint64(share.Memory) * factor << 20
			if share.Memory == 0 {
				limit = totals[share.UUID]
			}
			used, driver := known.UsedBy(container.PodUID, container.Name, share.UUID)
			if driver && !now {
				gauge(c.limit, float64(limit), labels...) // its use is unknown
				continue
			}
			cores, isCounted := known.CoresOf(container.PodUID, container.Name, share.UUID)
			if isCounted && now {
				gauge(c.utilization, cores, labels...)
			}
			if in, has := counted.UsedOf(share.UUID); has && !driver {
				used = in
			} else if i := deviceOf(read, share.UUID); i >= 0 && !driver {
				used = read.Used(i)
			}
			c.share(gauge, labels, share.UUID, limit, read, used, isCounted)
		}
	}
	gauge(c.unreadable, float64(unreadable))
}

// share exports one share. read is nil before the container's limiter has started, and where it has none. The limiter lists GPUs in
// CUDA's order for the container, not the scheduler's, so GPUs are matched by UUID. isCounted: the node itself counts the GPU's
// time.
func (c *Collector) share(gauge func(*prometheus.Desc, float64, ...string), labels []string, uuid string, limit uint64,
	read *region.Region, used uint64, counted bool) {
	gauge(c.limit, float64(limit), labels...)
	gauge(c.used, float64(used), labels...)
	i := deviceOf(read, uuid)
	if i < 0 {
		if !counted {
			gauge(c.utilization, 0, labels...)
		}
		return
	}
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
	if !counted {
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
		gauge(c.memory, float64(used), slices.Concat(labels, []string{number(sum.Context), number(sum.Module), number(sum.Data), "0"})...)
	}
}

// mostFiles is how many files of a container's directory are read: the limiter makes one, and other files of a tenant must not slow
// down a scrape.
const mostFiles = 16

// deviceOf is the number of a GPU in a region, -1 where it has none, or there is no region.
func deviceOf(read *region.Region, uuid string) int {
	if read == nil {
		return -1
	}
	return slices.IndexFunc(read.Devices, func(d region.Device) bool { return d.UUID == uuid })
}

// read finds a container's account and its region: the first valid file. Neither, and no error: the container has not called CUDA.
func (c *Collector) read(container Container) (*account.Account, *region.Region, error) {
	name := container.PodUID + "_" + container.Name
	directory := filepath.Join(c.options.Directory, name)
	counted, err := readAccount(filepath.Join(c.options.Accounts, name, account.Name), filepath.Join(directory, "gpufabric.account"))
	if err != nil {
		return &account.Account{}, nil, err
	}
	read, err := readRegion(directory)
	if read != nil && counted.Opened {
		read.Keep(counted.Lives)
	}
	return counted, read, err
}

// readAccount reads the first account that exists: that of the node, or one that the library made in a container without that. Another
// limiter has none; a file of another layout counts as none.
func readAccount(paths ...string) (*account.Account, error) {
	for _, path := range paths {
		counted, err := account.Read(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, account.ErrNotAnAccount) {
			continue
		}
		return counted, err
	}
	return &account.Account{}, nil
}

func readRegion(directory string) (*region.Region, error) {
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
			return read, nil
		}
		last = err
	}
	return nil, last
}
