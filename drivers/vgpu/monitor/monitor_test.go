package monitor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/gpu/limiter/account/accounttest"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/figures"
)

const uuid = "GPU-542efc47-39a1-9669-3d17-3b7dec8251ad"

type machine struct {
	containers []Container
	away       bool
	used       []figures.Use
}

func (m machine) Figures() (figures.Figures, bool) {
	return figures.Figures{Factor: 10, GPUs: []figures.GPU{{Index: 7, UUID: uuid, MemoryUsed: 514326528, MemoryTotal: 49140 << 20,
		Utilization: 12}}, Used: m.used}, !m.away
}
func (m machine) Containers() []Container { return m.containers }

func pod(name string, memory int64) Container {
	return Container{Namespace: "default", Pod: name, PodUID: "uid-" + name, Name: "pod1-ctr",
		Shares: []annotation.Share{{UUID: uuid, Memory: memory}}}
}

// hamiCore writes a region of layout 1.2 like a container's limiter: one device with a limit, one process that uses some of it.
func hamiCore(t testing.TB, directory string, container Container, limit, used uint64, lastKernel int64) {
	t.Helper()
	b := make([]byte, 2008953)
	for at, value := range map[int]uint32{0: 19920718, 4: 1, 8: 2, 1856: 7, 2008896: 1} {
		binary.LittleEndian.PutUint32(b[at:], value)
	}
	for at, value := range map[int]uint64{56: 1, 1600: limit, 1856 + 8 + 16: used, 1856 + 8 + 32: used, 1856 + 1160 + 16: 30,
		2008912: uint64(lastKernel)} {
		binary.LittleEndian.PutUint64(b[at:], value)
	}
	copy(b[64:], uuid)
	path := filepath.Join(directory, container.PodUID+"_"+container.Name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "cudevshr.cache"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func collector(directory string, byteLabels bool, containers ...Container) *Collector {
	return New(Options{
		Source: machine{containers: containers}, Directory: directory, ByteLabels: byteLabels,
		Now: func() time.Time { return time.Unix(1763000100, 0) },
	})
}

func TestSeriesAreThoseThatDashboardsExpect(t *testing.T) {
	directory := t.TempDir()
	running := pod("test1", 1024)
	hamiCore(t, directory, running, 10240<<20, 400<<20, 1763000000)
	want := `
# HELP Device_last_kernel_of_container Time since a container's last kernel launch, in seconds.
# TYPE Device_last_kernel_of_container gauge
Device_last_kernel_of_container{ctrname="pod1-ctr",deviceuuid="` + uuid + `",podname="test1",podnamespace="default",vdeviceid="0",` +
		`zone="vGPU"} 100
# HELP Device_utilization_desc_of_container Share of a GPU's SMs that a container uses, in percent.
# TYPE Device_utilization_desc_of_container gauge
Device_utilization_desc_of_container{ctrname="pod1-ctr",deviceuuid="` + uuid + `",podname="test1",podnamespace="default",` +
		`vdeviceid="0",zone="vGPU"} 30
# HELP HostCoreUtilization Share of time in which a kernel ran on a GPU, in percent.
# TYPE HostCoreUtilization gauge
HostCoreUtilization{deviceidx="7",deviceuuid="` + uuid + `",zone="vGPU"} 12
# HELP HostGPUMemoryUsage Memory in use on a GPU, in bytes.
# TYPE HostGPUMemoryUsage gauge
HostGPUMemoryUsage{deviceidx="7",deviceuuid="` + uuid + `",zone="vGPU"} 5.14326528e+08
# HELP gpufabric_vgpu_memory_limit_drift_bytes Limit that holds inside a container, less the limit that the scheduler gave it, in ` +
		`bytes; 0 where they agree.
# TYPE gpufabric_vgpu_memory_limit_drift_bytes gauge
gpufabric_vgpu_memory_limit_drift_bytes{ctrname="pod1-ctr",deviceuuid="` + uuid + `",podname="test1",podnamespace="default",vdeviceid="0"} 0
# HELP gpufabric_vgpu_plugin_answers 1 where vgpu-plugin gave the GPUs' figures at this scrape, 0 where the node's own series are ` +
		`missing for want of them.
# TYPE gpufabric_vgpu_plugin_answers gauge
gpufabric_vgpu_plugin_answers 1
# HELP gpufabric_vgpu_regions_unreadable Containers whose accounting could not be read at this scrape.
# TYPE gpufabric_vgpu_regions_unreadable gauge
gpufabric_vgpu_regions_unreadable 0
# HELP vGPU_device_memory_limit_in_bytes Memory of a container's share of a GPU, in bytes.
# TYPE vGPU_device_memory_limit_in_bytes gauge
vGPU_device_memory_limit_in_bytes{ctrname="pod1-ctr",deviceuuid="` + uuid + `",podname="test1",podnamespace="default",vdeviceid="0",` +
		`zone="vGPU"} 1.073741824e+10
# HELP vGPU_device_memory_usage_in_bytes Memory that a container uses of its share of a GPU, in bytes.
# TYPE vGPU_device_memory_usage_in_bytes gauge
vGPU_device_memory_usage_in_bytes{ctrname="pod1-ctr",deviceuuid="` + uuid + `",podname="test1",podnamespace="default",vdeviceid="0",` +
		`zone="vGPU"} 4.194304e+08
`
	if err := testutil.CollectAndCompare(collector(directory, false, running), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// Programs clean /tmp, where the region is. A container's own numbers in the region are not those that its limit is held by.
func TestCollectorPrefersTheAccountToTheRegion(t *testing.T) {
	directory, accounts, running := t.TempDir(), t.TempDir(), pod("test1", 1024)
	own := filepath.Join(accounts, running.PodUID+"_"+running.Name)
	if err := account.Make(own, false); err != nil {
		t.Fatal(err)
	}
	accounttest.Count(t, filepath.Join(own, account.Name), uuid, 300<<20)
	c := collector(directory, false, running)
	c.options.Accounts = accounts
	for _, region := range []bool{false, true} {
		if region {
			hamiCore(t, directory, running, 10240<<20, 400<<20, 1763000000)
		}
		want := `
# HELP vGPU_device_memory_usage_in_bytes Memory that a container uses of its share of a GPU, in bytes.
# TYPE vGPU_device_memory_usage_in_bytes gauge
vGPU_device_memory_usage_in_bytes{ctrname="pod1-ctr",deviceuuid="` + uuid + `",podname="test1",podnamespace="default",vdeviceid="0",` +
			`zone="vGPU"} 3.145728e+08
`
		if err := testutil.CollectAndCompare(c, strings.NewReader(want), "vGPU_device_memory_usage_in_bytes"); err != nil {
			t.Errorf("with a region %t: %v", region, err)
		}
	}
}

// It has no limiter inside, and so no region.
func TestMonitorReadsUsageFromTheDriver(t *testing.T) {
	limited, other := pod("limited", 1024), pod("other", 1024)
	node := machine{containers: []Container{limited, other},
		used: []figures.Use{{PodUID: limited.PodUID, Container: limited.Name, UUID: "GPU-other", Bytes: 1},
			{PodUID: limited.PodUID, Container: limited.Name, UUID: uuid, Bytes: 400 << 20}}}
	c := New(Options{Directory: t.TempDir(), Now: time.Now, Source: node})
	const name = "vGPU_device_memory_usage_in_bytes"
	want := "# HELP " + name + " Memory that a container uses of its share of a GPU, in bytes.\n# TYPE " + name + " gauge\n"
	for pod, used := range map[string]string{"limited": "4.194304e+08", "other": "0"} {
		want += fmt.Sprintf("%s{ctrname=\"pod1-ctr\",deviceuuid=%q,podname=%q,podnamespace=\"default\",vdeviceid=\"0\",zone=\"vGPU\"} %s\n",
			name, uuid, pod, used)
	}
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
	node.away = true
	if got := testutil.CollectAndCount(New(Options{Directory: t.TempDir(), Now: time.Now, Source: node}), name); got != 1 {
		t.Errorf("%d series while the plugin is away, want the other container's alone", got)
	}
}

func TestSeriesAreThereFromAllocationOn(t *testing.T) {
	c := collector(t.TempDir(), false, pod("waiting", 1024), pod("whole", 0))
	for name, want := range map[string]int{"vGPU_device_memory_limit_in_bytes": 2, "vGPU_device_memory_usage_in_bytes": 2,
		"Device_last_kernel_of_container": 0} {
		if got := testutil.CollectAndCount(c, name); got != want {
			t.Errorf("%d series of %s, want %d", got, name, want)
		}
	}
}

// The plugin restarts while containers run: their limits and use are known without it.
func TestMonitorKeepsSeriesWithoutThePlugin(t *testing.T) {
	c := New(Options{Source: machine{containers: []Container{pod("running", 1024), pod("whole", 0)}, away: true}, Directory: t.TempDir(),
		Now: time.Now})
	for name, want := range map[string]int{"vGPU_device_memory_limit_in_bytes": 2, "HostGPUMemoryUsage": 0, "HostCoreUtilization": 0} {
		if got := testutil.CollectAndCount(c, name); got != want {
			t.Errorf("%d series of %s, want %d", got, name, want)
		}
	}
	if err := testutil.CollectAndCompare(c, strings.NewReader(`# HELP gpufabric_vgpu_plugin_answers 1 where vgpu-plugin gave the GPUs' `+
		"figures at this scrape, 0 where the node's own series are missing for want of them.\n"+
		"# TYPE gpufabric_vgpu_plugin_answers gauge\ngpufabric_vgpu_plugin_answers 0\n"), "gpufabric_vgpu_plugin_answers"); err != nil {
		t.Error(err)
	}
}

func TestByteCountsAreLabelsOnlyWhenConfigured(t *testing.T) {
	directory := t.TempDir()
	running := pod("test1", 1024)
	hamiCore(t, directory, running, 1, 1, 0)
	for byteLabels, want := range map[bool]int{false: 0, true: 1} {
		if got := testutil.CollectAndCount(collector(directory, byteLabels, running), "Device_memory_desc_of_container"); got != want {
			t.Errorf("ByteLabels %v: %d series, want %d", byteLabels, got, want)
		}
	}
}

func TestMonitorSkipsAHostileDirectory(t *testing.T) {
	directory := t.TempDir()
	hostile, good := pod("hostile", 1024), pod("good", 1024)
	path := filepath.Join(directory, "uid-hostile_pod1-ctr")
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(path, "cudevshr.cache")); err != nil {
		t.Fatal(err)
	}
	hamiCore(t, directory, good, 1, 7, 0)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector(directory, true, hostile, good))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				if label.GetName() == "podname" {
					name += "/" + label.GetValue()
				}
			}
			values[name] = metric.GetGauge().GetValue()
		}
	}
	if values["gpufabric_vgpu_regions_unreadable"] != 1 || values["vGPU_device_memory_usage_in_bytes/good"] != 7 ||
		values["vGPU_device_memory_usage_in_bytes/hostile"] != 0 {
		t.Errorf("values %v", values)
	}
}

func BenchmarkScrapeOf200Containers(b *testing.B) {
	directory := b.TempDir()
	var containers []Container
	for i := range 200 {
		containers = append(containers, pod(fmt.Sprintf("pod-%d", i), 1024))
		hamiCore(b, directory, containers[i], 1, 1, 1)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(directory, false, containers...))
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

// The limiter lists a container's GPUs in CUDA's order, the annotation in the scheduler's.
func TestMonitorDoesNotSwapTwoGPUs(t *testing.T) {
	const second = "GPU-bbbbbbbb-4e5f-6071-8293-a4b5c6d7e8f9"
	directory := t.TempDir()
	two := pod("two", 1)
	two.Shares = []annotation.Share{{UUID: second, Memory: 2}, {UUID: uuid, Memory: 1}}
	hamiCore(t, directory, two, 10<<20, 7, 0)
	path := filepath.Join(directory, "uid-two_pod1-ctr", "cudevshr.cache")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at, value := range map[int]uint64{56: 2, 1608: 20 << 20, 1856 + 8 + 64 + 16: 9, 1856 + 8 + 64 + 32: 9} {
		binary.LittleEndian.PutUint64(b[at:], value)
	}
	copy(b[64+96:], second)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	labels := func(number int, gpu string) string {
		return `{ctrname="pod1-ctr",deviceuuid="` + gpu + `",podname="two",podnamespace="default",vdeviceid="` + strconv.Itoa(number) + `"`
	}
	want := `
# HELP gpufabric_vgpu_memory_limit_drift_bytes Limit that holds inside a container, less the limit that the scheduler gave it, in ` +
		`bytes; 0 where they agree.
# TYPE gpufabric_vgpu_memory_limit_drift_bytes gauge
gpufabric_vgpu_memory_limit_drift_bytes` + labels(0, second) + `} 0
gpufabric_vgpu_memory_limit_drift_bytes` + labels(1, uuid) + `} 0
# HELP vGPU_device_memory_usage_in_bytes Memory that a container uses of its share of a GPU, in bytes.
# TYPE vGPU_device_memory_usage_in_bytes gauge
vGPU_device_memory_usage_in_bytes` + labels(0, second) + `,zone="vGPU"} 9
vGPU_device_memory_usage_in_bytes` + labels(1, uuid) + `,zone="vGPU"} 7
`
	if err := testutil.CollectAndCompare(collector(directory, false, two), strings.NewReader(want), "vGPU_device_memory_usage_in_bytes",
		"gpufabric_vgpu_memory_limit_drift_bytes"); err != nil {
		t.Error(err)
	}
}
