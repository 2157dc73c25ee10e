package selector_test

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// expressions have the verdict for a GPU, a shared GPU, a MIG device and a device of which nothing is known.
func expressions() map[string][4]selector.Verdict {
	const no, yes, failed = selector.No, selector.Yes, selector.Failed
	return map[string][4]selector.Verdict{
		`device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`:             {yes, yes, no, failed},
		`device.allowMultipleAllocations == true && !('vgpuProfile' in device.attributes['gpu.nvidia.com'])`: {no, yes, no, no},
		`true`: {yes, yes, yes, yes},
		`device.attributes["nowhere"].missing == "x"`:                                         {failed, failed, failed, failed},
		`device.driver == "other" && device.attributes["nowhere"].missing == "x"`:             {no, no, no, no},
		`device.attributes["nowhere"].missing == "x" || device.driver == "gpu.nvidia.com"`:    {yes, yes, yes, yes},
		`device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*gb200$")`:   {yes, yes, yes, failed},
		`device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("580.0.0")) >= 0`: {yes, yes, yes, failed},
		`device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("200Gi"))`:           {no, no, failed, failed},
		`device.attributes["gpu.nvidia.com"].good`:                                            {yes, yes, yes, failed},
		`device.attributes["resource.kubernetes.io"].numaNode == 0`:                           {yes, yes, yes, failed},
		`cel.bind(a, device.attributes["gpu.nvidia.com"], a.type == "mig")`:                   {no, no, yes, failed},
		`device.attributes["gpu.nvidia.com"].index % 2 == 1`:                                  {yes, yes, yes, failed},
		`device.attributes["gpu.nvidia.com"].index == 3 ? true : false`:                       {yes, yes, yes, failed},
	}
}

func TestJudgeReturnsTheSchedulersVerdict(t *testing.T) {
	for expression, wants := range expressions() {
		s := selector.Read(expression)
		for i, name := range []string{"a GPU", "a shared GPU", "a MIG device", "nothing known of"} {
			if got, why := s.Judge("gpu.nvidia.com", devices()[name]); got != wants[i] || (got == selector.Failed) != (why != "") {
				t.Errorf("%s of %s: %s (%s), want %s", expression, name, got, why, wants[i])
			}
		}
	}
}

// A tenant's selector is evaluated for every device of the cluster, by every doctor.
func TestJudgeReturnsUnknownWhenExpressionCostsTooMuch(t *testing.T) {
	list := "[" + strings.Repeat("1,", 200) + "1]"
	expression := list + ".all(a, " + list + ".all(b, " + "a == b))"
	if verdict, why := selector.Read(expression).Judge("gpu.nvidia.com", devices()["a GPU"]); verdict != selector.Unknown {
		t.Errorf("%s (%s), want unknown", verdict, why)
	}
}

func FuzzNoExpressionBreaksTheReader(f *testing.F) {
	for e := range expressions() {
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

// A chain without parentheses nested the reader's calls without a bound.
func TestReadRefusesExpressionWithTooManyLinks(t *testing.T) {
	device := devices()["a GPU"]
	for name, text := range map[string]string{
		"members":    "device" + strings.Repeat(".a", 2000),
		"indices":    "device" + strings.Repeat("[0]", 2000),
		"calls":      "device" + strings.Repeat(".a()", 2000),
		"minuses":    strings.Repeat("-", 5000) + "1",
		"brackets":   strings.Repeat("(", 5000) + "true" + strings.Repeat(")", 5000),
		"too long":   "device" + strings.Repeat(".a", 6_000_000),
		"long lists": "1 in [" + strings.Repeat("[", 5000),
	} {
		verdict, why := selector.Read(text).Judge("gpu.nvidia.com", device)
		if verdict != selector.Unknown || why == "" {
			t.Errorf("%s: %s (%s), want unknown", name, verdict, why)
		}
		t.Logf("attacker sees: %s", why)
	}
	names := make([]string, 300)
	for i := range names {
		names[i] = fmt.Sprintf("device.driver == 'a%d'", i)
	}
	if verdict, why := selector.Read(strings.Join(names, " || ")).Judge("gpu.nvidia.com", device); verdict != selector.No {
		t.Errorf("300 alternatives: %s (%s)", verdict, why)
	}
}

func TestMissesNamesValueAndRequest(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`device.driver == 'gpu.nvidia.com' && device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("200Gi")) >= 0`,
			"memory is 186Gi, asked for 200Gi"},
		{`device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100"`, "productName is NVIDIA GB200, asked for NVIDIA H100"},
		{`device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("590.0.0"))`, "driverVersion is 580.95.5, asked for 590.0.0"},
		{`device.attributes["gpu.nvidia.com"].productName == "a" || false`, ""},
	} {
		misses, ok := selector.Read(c.text).Misses("gpu.nvidia.com", devices()["a GPU"])
		if got := strings.Join(misses, "; "); ok != (c.want != "") || got != c.want {
			t.Errorf("%s: %q %t, want %q", c.text, got, ok, c.want)
		}
	}
}
