package selector_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/doctor/selector"
)

func devices() map[string]*resourceapi.Device {
	attributes := func(kind string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: &kind}, "productName": {StringValue: ptr.To("NVIDIA GB200")}, "index": {IntValue: ptr.To[int64](3)},
			"good": {BoolValue: ptr.To(true)}, "driverVersion": {VersionValue: ptr.To("580.95.5")},
			"resource.kubernetes.io/numaNode": {IntValue: ptr.To[int64](0)},
		}
	}
	memory := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("186Gi")}}
	return map[string]*resourceapi.Device{
		"a GPU":            {Name: "gpu-0", Attributes: attributes("gpu"), Capacity: memory},
		"a shared GPU":     {Name: "gpu-1", Attributes: attributes("gpu"), Capacity: memory, AllowMultipleAllocations: ptr.To(true)},
		"a MIG device":     {Name: "mig-0", Attributes: attributes("mig")},
		"nothing known of": {Name: "x"},
	}
}

func expressions() []string {
	return []string{
		`device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`,
		`device.driver == "gpu.nvidia.com" && device.allowMultipleAllocations == true && !('vgpuProfile' in device.attributes['gpu.nvidia.com'])`,
		`device.driver == 'other'`, `true`, `!true`, `device.driver != 'other' || false`,
		`device.attributes["gpu.nvidia.com"].missing == "x"`,
		`device.attributes["nowhere"].missing == "x"`,
		`device.driver == "other" && device.attributes["nowhere"].missing == "x"`,
		`device.attributes["nowhere"].missing == "x" || device.driver == "gpu.nvidia.com"`,
		`device.attributes["gpu.nvidia.com"].index >= 2 && device.attributes["gpu.nvidia.com"].index < 4`,
		`device.attributes["gpu.nvidia.com"].productName.startsWith("NVIDIA")`,
		`device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*gb200$")`,
		`device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("580.0.0")) >= 0`,
		`device.attributes["gpu.nvidia.com"].driverVersion.isLessThan(semver("570.0.0"))`,
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("100Gi")) > 0`,
		`device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("200Gi"))`,
		`device.attributes["gpu.nvidia.com"].good`,
		`device.attributes["resource.kubernetes.io"].numaNode == 0`,
		`device.attributes["gpu.nvidia.com"].type in ["gpu", "mig"]`,
		`"type" in device.attributes["gpu.nvidia.com"] // a comment`,
		`(device.driver == "a" || device.driver == "gpu.nvidia.com") && (true)`,
		`cel.bind(a, device.attributes["gpu.nvidia.com"], a.type == "gpu")`,
		`device.attributes["gpu.nvidia.com"].index % 2 == 1`,
		`device.attributes["gpu.nvidia.com"].type == 'mi' + 'g'`,
		`device.attributes["gpu.nvidia.com"].index == 3 ? true : false`,
	}
}

// TestVerdictsAreThoseOfTheSchedulersLibrary compares each verdict other than Unknown with the scheduler's library.
func TestVerdictsAreThoseOfTheSchedulersLibrary(t *testing.T) {
	known := 0
	for _, expression := range expressions() {
		compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{})
		if compiled.Error != nil {
			t.Errorf("%s: %v", expression, compiled.Error)
			continue
		}
		for name, device := range devices() {
			got, why := selector.Read(expression).Judge("gpu.nvidia.com", device)
			if got == selector.Unknown {
				continue
			}
			known++
			matches, _, err := compiled.DeviceMatches(t.Context(), cel.Device{Driver: "gpu.nvidia.com", Attributes: device.Attributes,
				Capacity: device.Capacity, AllowMultipleAllocations: device.AllowMultipleAllocations})
			want := selector.No
			if matches {
				want = selector.Yes
			}
			if err != nil {
				want = selector.Failed
			}
			if got != want {
				t.Errorf("%s of %s: %s (%s), want %s (%v)", expression, name, got, why, want, err)
			}
		}
	}
	if known < 80 {
		t.Errorf("only %d verdicts are known", known)
	}
}

func FuzzNoExpressionBreaksTheReader(f *testing.F) {
	for _, e := range expressions() {
		f.Add(e)
	}
	f.Add("((((((((")
	f.Add("![-['")
	f.Fuzz(func(_ *testing.T, text string) {
		s := selector.Read(text)
		for _, d := range devices() {
			s.Judge("gpu.nvidia.com", d)
		}
	})
}
