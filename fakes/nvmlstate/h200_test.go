package nvmlstate_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// codes are NVML's errors by the names of the captured table.
func codes() map[string]nvml.Return {
	return map[string]nvml.Return{"NotSupported": nvml.ERROR_NOT_SUPPORTED, "InvalidArgument": nvml.ERROR_INVALID_ARGUMENT,
		"NotFound": nvml.ERROR_NOT_FOUND, "NotReady": nvml.ERROR_NOT_READY, "Unknown": nvml.ERROR_UNKNOWN,
		"FunctionNotFound": nvml.ERROR_FUNCTION_NOT_FOUND}
}

// differences are getters in which the fake is not as the H200 was, with the reason.
func differences() map[string]string {
	return map[string]string{
		"AddressingMode":                  "the profile has HMM, as the captured nvidia-smi of other machines",
		"ConfComputeGpuCertificate":       "confidential computing is not in the fake",
		"ConfComputeMemSizeInfo":          "confidential computing is not in the fake",
		"ConfComputeProtectedMemoryUsage": "confidential computing is not in the fake",
		"FanSpeedRPM":                     "a GPU without fans answers this as not supported",
		"MinMaxFanSpeed":                  "a GPU without fans answers this as not supported",
		"RepairStatus":                    "repairs of channels and TPCs are not in the fake",
		"SupportedEventTypes":             "the fake has the events of faults that it plays",
		"SupportedMemoryClocks":           "a profile has one memory clock",
		"SupportedPerformanceStates":      "a profile has one memory clock",
	}
}

// The Go library answers as the C library does: TestParityOfTheCAndTheGoLibrary.
func TestGettersAnswerAsARealH200(t *testing.T) {
	p, err := profile.Load("h200-hgx")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	library := nvmlstate.New(root)
	if r := library.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	device, r := library.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	table, err := os.ReadFile("testdata/h200-nvml.tsv")
	if err != nil {
		t.Fatal(err)
	}
	compared, other := 0, differences()
	for line := range strings.Lines(string(table)) {
		name, want, row := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		method := reflect.ValueOf(device).MethodByName("Get" + name)
		if !row || !method.IsValid() || method.Type().NumIn() > 0 {
			continue // a comment, or a function that go-nvml calls in another way
		}
		results := method.Call(nil)
		code, ok := results[len(results)-1].Interface().(nvml.Return)
		if !ok {
			continue
		}
		compared++
		var got []string
		for _, result := range results[:len(results)-1] {
			got = append(got, leaves(result)...)
		}
		answer := strings.Join(got, " ")
		if code != nvml.SUCCESS {
			answer = "!" + code.Error()
		}
		if wanted := codes()[strings.TrimPrefix(want, "!")]; strings.HasPrefix(want, "!") {
			want = "!" + wanted.Error()
		}
		if answer == want {
			continue
		}
		if _, known := other[name]; known {
			delete(other, name)
		} else {
			t.Errorf("Get%s: the H200 %s, the fake %s", name, want, answer)
		}
	}
	t.Logf("%d getters", compared)
	if compared < 80 {
		t.Errorf("%d getters were compared, want 80 at least", compared)
	}
	for name := range other {
		t.Errorf("Get%s answers as the H200, and is listed as one that does not", name)
	}
}

// leaves are the numbers and texts of a value in order.
func leaves(v reflect.Value) (all []string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			all = append(all, leaves(v.Field(i))...)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			all = append(all, leaves(v.Index(i))...)
		}
	case reflect.Bool:
		all = append(all, map[bool]string{true: "1", false: "0"}[v.Bool()])
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		all = append(all, fmt.Sprint(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		all = append(all, fmt.Sprint(v.Uint()))
	default:
		all = append(all, fmt.Sprint(v))
	}
	return all
}
