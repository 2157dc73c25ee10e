package nvmlstate_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// getterGoal is the time that a getter may take.
const getterGoal = time.Microsecond

// Each getter is called in rounds; the fastest round counts, since a slower one was disturbed by other programs.
const (
	getterRounds = 20
	getterCalls  = 500
)

// getter is one call of go-nvml with its arguments.
type getter struct {
	name   string
	method reflect.Value
	args   []reflect.Value
}

// time returns the time of one call, and its code.
func (g getter) time() (time.Duration, nvml.Return) {
	fastest := time.Duration(1<<63 - 1)
	var results []reflect.Value
	for range getterRounds {
		begin := time.Now()
		for range getterCalls {
			results = g.method.Call(g.args)
		}
		fastest = min(fastest, time.Since(begin)/getterCalls)
	}
	code, _ := results[len(results)-1].Interface().(nvml.Return)
	return fastest, code
}

// bytes is the size of the results, without those behind pointers.
func (g getter) bytes() (n uintptr) {
	for i := range g.method.Type().NumOut() {
		n += g.method.Type().Out(i).Size()
	}
	return n
}

// BenchmarkEveryGetter calls each getter of the library and of a GPU through go-nvml and prints its nanoseconds and its results' size,
// the slowest first, those above the goal marked. The time includes cgo and go-nvml's copies of the results; that of a reflected call to a
// function that does nothing is taken off.
func BenchmarkEveryGetter(b *testing.B) {
	device := newestDevice(b, "gb200-nvl72")
	reflection, _ := getter{method: reflect.ValueOf(func() (int, nvml.Return) { return 0, nvml.SUCCESS })}.time()
	for b.Loop() {
		type row struct {
			getter
			took time.Duration
			code nvml.Return
		}
		var rows []row
		for _, g := range getters(device) {
			took, code := g.time()
			rows = append(rows, row{g, took - reflection, code})
		}
		slices.SortFunc(rows, func(x, y row) int { return int(y.took - x.took) })
		over := 0
		for _, r := range rows {
			mark := ""
			if r.took > getterGoal {
				mark, over = "above the goal", over+1
			}
			fmt.Printf("%6d ns  %6d bytes  %-48s %s %s\n", r.took.Nanoseconds(), r.bytes(), r.name, r.code.Error(), mark)
		}
		b.ReportMetric(float64(len(rows)), "getters")
		b.ReportMetric(float64(over), "above-goal")
		b.ReportMetric(float64(rows[0].took.Nanoseconds()), "slowest-ns")
		b.ReportMetric(float64(rows[len(rows)/2].took.Nanoseconds()), "median-ns")
		b.ReportMetric(float64(reflection.Nanoseconds()), "reflection-ns")
	}
}

// load renders the machine below sharedRoot, and loads the C library from there once.
func load(b *testing.B, p *profile.Profile) {
	b.Helper()
	o := tree.Options{Profile: p, Root: sharedRoot, PlainDevices: true}
	if !loaded {
		o.LibraryDir = filepath.Join(built.Dir(b), "lib")
	}
	if err := tree.Render(b.Context(), o); err != nil {
		b.Fatal(err)
	}
	if !loaded {
		clib, loaded = nvml.New(nvml.WithLibraryPath(filepath.Join(sharedRoot, "driver/usr/lib64/libnvidia-ml.so.1"))), true
		if r := clib.Init(); r != nvml.SUCCESS {
			b.Fatal(r)
		}
	}
}

// newestDevice renders the profile with a driver that lacks no function, and opens its first GPU through the C library.
func newestDevice(b *testing.B, name string) nvml.Device {
	b.Helper()
	p, err := profile.Load(name)
	if err != nil {
		b.Fatal(err)
	}
	newest := *p
	newest.Driver.Version = "999.99"
	load(b, &newest)
	device, r := clib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		b.Fatal(r)
	}
	return device
}

// getters are all getters of the library and of the GPU that take nothing, each version of those that go-nvml has versions of, and those
// with an argument that programs for monitoring call.
func getters(device nvml.Device) []getter {
	var all []getter
	for of, on := range map[reflect.Type]any{reflect.TypeFor[nvml.Device](): device, reflect.TypeFor[nvml.Interface](): clib} {
		for i := range of.NumMethod() {
			name, method := of.Method(i).Name, reflect.ValueOf(on).MethodByName(of.Method(i).Name)
			if !strings.Contains(name, "Get") && !strings.HasPrefix(name, "Is") || method.Type().NumIn() > 0 {
				continue
			}
			all = append(all, calls(name, method, nil)...)
		}
	}
	for _, call := range withArguments() {
		name := call[0].(string) //nolint:forcetypeassert // the table is this file's
		method := reflect.ValueOf(device).MethodByName(name)
		var args []reflect.Value
		for i, a := range call[1:] {
			args = append(args, reflect.ValueOf(a).Convert(method.Type().In(i))) // constants of nvml.h without a type
		}
		all = append(all, calls(name+fmt.Sprint(call[1:]), method, args)...)
	}
	return all
}

// calls are the method itself where it ends in a code, or each version of the handler that it returns.
func calls(name string, method reflect.Value, args []reflect.Value) []getter {
	results := method.Type().NumOut()
	if method.Type().Out(results-1) == reflect.TypeFor[nvml.Return]() {
		return []getter{{name, method, args}}
	}
	var all []getter
	handler := method.Call(args)[0]
	for i := range handler.NumMethod() {
		version := handler.Type().Method(i).Name
		if handler.Type() == reflect.TypeFor[nvml.NvLinkInfoHandler]() && version == "V1" {
			continue // go-nvml v0.13.4-0 treats its struct as the larger one of V2
		}
		if handler.Method(i).Type().NumIn() == 0 {
			all = append(all, getter{name + "." + version, handler.Method(i), nil})
		}
	}
	return all
}

// withArguments are getters by name with their arguments.
func withArguments() [][]any {
	return [][]any{
		{"GetClock", nvml.CLOCK_SM, nvml.CLOCK_ID_CURRENT},
		{"GetClockInfo", nvml.CLOCK_SM},
		{"GetMaxClockInfo", nvml.CLOCK_MEM},
		{"GetMaxCustomerBoostClock", nvml.CLOCK_GRAPHICS},
		{"GetTemperature", nvml.TEMPERATURE_GPU},
		{"GetTemperatureThreshold", nvml.TEMPERATURE_THRESHOLD_SHUTDOWN},
		{"GetPcieThroughput", nvml.PCIE_UTIL_TX_BYTES},
		{"GetTotalEccErrors", nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC},
		{"GetMemoryErrorCounter", nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_DRAM},
		{"GetViolationStatus", nvml.PERF_POLICY_POWER},
		{"GetRetiredPages", nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR},
		{"GetNvLinkState", 0},
		{"GetNvLinkVersion", 0},
		{"GetNvLinkCapability", 0, nvml.NVLINK_CAP_P2P_SUPPORTED},
		{"GetNvLinkRemotePciInfo", 0},
		{"GetNvLinkRemoteDeviceType", 0},
		{"GetNvLinkErrorCounter", 0, nvml.NVLINK_ERROR_DL_REPLAY},
		{"GetGpuInstanceProfileInfo", 0},
		{"GetGpuInstanceProfileInfoV", 0},
		{"GetCpuAffinity", 4},
		{"GetMemoryAffinity", 2, nvml.AFFINITY_SCOPE_NODE},
		{"GetFieldValues", []nvml.FieldValue{{FieldId: nvml.FI_DEV_POWER_INSTANT}}},
	}
}
