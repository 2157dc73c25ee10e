package validation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// gpu is a GpuConfig with this sharing section.
func gpu(sharing string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":` + sharing + `}`
}

func mig(sharing string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":` + sharing + `}`
}

// mps is a GpuConfig with this mpsConfig section.
func mps(config string) string { return gpu(`{"strategy":"MPS","mpsConfig":` + config + `}`) }

func channel(rest string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"ComputeDomainChannelConfig"` + rest + `}`
}

func daemon(rest string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"ComputeDomainDaemonConfig"` + rest + `}`
}

func rdma(rest string) string {
	return `{"apiVersion":"gpufabric.io/v1alpha1","kind":"RDMAConfig",` + rest + `}`
}

const domain = `,"domainID":"0f1c5d5e-9a5b-4f6e-8c39-5b2d6b0f8a11"`

// wrong are configurations that must be refused, each with parts of the expected message: the field, the value or what is allowed.
var wrong = []struct {
	name, driver, raw string
	want              []string
}{
	// Input that is no configuration at all.
	{"nothing", GPUDriver, ``, []string{"not a JSON object"}},
	{"null", GPUDriver, `null`, []string{"apiVersion", `"resource.nvidia.com/v1beta1"`}},
	{"an empty object", GPUDriver, `{}`, []string{"apiVersion", `""`, `"resource.nvidia.com/v1beta1"`}},
	{"a list", GPUDriver, `[]`, []string{"not a JSON object"}},
	{"a string", GPUDriver, `"GpuConfig"`, []string{"not a JSON object"}},
	{"a number", GPUDriver, `7`, []string{"not a JSON object"}},
	{"half an object", GPUDriver, `{"apiVersion":`, []string{"not a JSON object"}},
	{"two objects", GPUDriver, gpu(`{"strategy":"MPS"}`) + `{}`, []string{"after top-level value"}},
	{"YAML", GPUDriver, "kind: GpuConfig", []string{"not a JSON object"}},
	{"text that is not UTF-8", GPUDriver, gpu("{\"strategy\":\"\xff\xfe\"}"), []string{"not UTF-8"}},
	{"more than 10 KiB", GPUDriver, gpu(`{"strategy":"` + strings.Repeat("x", 11<<10) + `"}`), []string{"bytes", "10240"}},
	{"a thousand nested lists", GPUDriver, gpu(strings.Repeat("[", 1000) + strings.Repeat("]", 1000)),
		[]string{`sharing: Invalid value: [[[[`, `an object`}},

	// Kinds and versions.
	{"no kind", GPUDriver, `{"apiVersion":"resource.nvidia.com/v1beta1"}`, []string{"kind", "GpuConfig", "MigDeviceConfig"}},
	{"an unknown kind", GPUDriver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"TpuConfig"}`,
		[]string{"kind", `"TpuConfig"`, "GpuConfig"}},
	{"a kind in lower case", GPUDriver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"gpuconfig"}`,
		[]string{`"gpuconfig"`, "GpuConfig"}},
	{"an unknown version", GPUDriver, `{"apiVersion":"resource.nvidia.com/v9","kind":"GpuConfig"}`,
		[]string{`"resource.nvidia.com/v9"`, "v1beta1"}},
	{"another group", GPUDriver, `{"apiVersion":"gpu.example.com/v1beta1","kind":"GpuConfig"}`,
		[]string{"gpu.example.com", "resource.nvidia.com/v1beta1"}},
	{"a version without a group", GPUDriver, `{"apiVersion":"v1beta1","kind":"GpuConfig"}`, []string{`"v1beta1"`}},
	{"a kind that is a number", GPUDriver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":7}`,
		[]string{`kind: Invalid value: 7`, `a word`}},
	{"a channel for a GPU", GPUDriver, channel(domain), []string{"ComputeDomainChannelConfig", "GpuConfig, MigDeviceConfig"}},
	{"a daemon for a GPU", GPUDriver, daemon(domain), []string{"ComputeDomainDaemonConfig", "GpuConfig, MigDeviceConfig"}},
	{"a GPU for a channel", ComputeDomainDriver, gpu(`{"strategy":"MPS"}`), []string{"GpuConfig", "ComputeDomainChannelConfig"}},
	{"passthrough by a policy of another name", GPUDriver,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig","iommu":{"backendPolicy":"RequireIommuFD"}}`,
		[]string{"iommu.backendPolicy", `"RequireIommuFD"`, `"LegacyOnly", "PreferIommuFD"`}},
	{"passthrough with a word for a switch", GPUDriver,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig","iommu":{"enableAPIDevice":"yes"}}`,
		[]string{"iommu.enableAPIDevice", `"yes"`, "true or false"}},
	{"passthrough for a channel", ComputeDomainDriver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig"}`,
		[]string{"VfioDeviceConfig", "ComputeDomainChannelConfig"}},
	{"a GPU's configuration for RDMA", RDMADriver, gpu(`{"strategy":"MPS"}`), []string{"apiVersion", `"gpufabric.io/v1alpha1"`}},
	{"an RDMA environment of another name", RDMADriver, rdma(`"environment":"MPI"`), []string{"environment", `"MPI"`, `"NCCL", "None"`}},
	{"an RDMA network of another name", RDMADriver, rdma(`"network":"host"`), []string{"network", `"host"`, `"Shared", "Exclusive"`}},
	{"an RDMA network that is a number", RDMADriver, rdma(`"network":1`), []string{"network", "1", "a word"}},
	{"an unknown field for RDMA", RDMADriver, rdma(`"bandwidth":7`), []string{"bandwidth"}},

	// Fields that do not exist, or not in this form.
	{"an unknown field", GPUDriver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","share":{}}`,
		[]string{`unknown field "share"`}},
	{"an unknown field within", GPUDriver, gpu(`{"strategy":"MPS","mpsconfig":{}}`), []string{`unknown field "sharing.mpsconfig"`}},
	{"a field in another case", GPUDriver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","Sharing":{"strategy":"MPS"}}`,
		[]string{`"Sharing"`}},
	{"a field twice", GPUDriver, gpu(`{"strategy":"MPS","strategy":"TimeSlicing"}`), []string{"duplicate field", "strategy"}},
	{"metadata", GPUDriver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","metadata":{"name":"x"}}`,
		[]string{`unknown field "metadata"`}},
	{"sharing that is a word", GPUDriver, gpu(`"MPS"`), []string{`sharing: Invalid value: "MPS"`, `an object`}},
	{"sharing that is a list", GPUDriver, gpu(`[{"strategy":"MPS"}]`), []string{`sharing: Invalid value: [{"strategy":"MPS"}]`, `an object`}},
	{"MIG devices with an interval", GPUDriver, mig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`),
		[]string{`unknown field "sharing.timeSlicingConfig"`}},

	// Strategies.
	{"sharing without a strategy", GPUDriver, gpu(`{}`), []string{"sharing.strategy", "TimeSlicing and MPS"}},
	{"an empty strategy", GPUDriver, gpu(`{"strategy":""}`), []string{"sharing.strategy", "TimeSlicing and MPS"}},
	{"an unknown strategy", GPUDriver, gpu(`{"strategy":"Magic"}`), []string{"sharing.strategy", `"Magic"`, "TimeSlicing", "MPS"}},
	{"a strategy in lower case", GPUDriver, gpu(`{"strategy":"mps"}`), []string{`"mps"`, "MPS"}},
	{"a strategy that is a number", GPUDriver, gpu(`{"strategy":1}`), []string{`sharing.strategy: Invalid value: 1`, `a word`}},
	{"a MIG device's unknown strategy", GPUDriver, mig(`{"strategy":"None"}`), []string{"sharing.strategy", `"None"`}},
	{"a MIG device's sharing without a strategy", GPUDriver, mig(`{}`), []string{`sharing.strategy`, `TimeSlicing and MPS`}},
	{"MPS with time slices", GPUDriver, gpu(`{"strategy":"MPS","timeSlicingConfig":{"interval":"Long"}}`),
		[]string{"sharing.timeSlicingConfig", "TimeSlicing"}},
	{"time slices with MPS", GPUDriver, gpu(`{"strategy":"TimeSlicing","mpsConfig":{"defaultActiveThreadPercentage":10}}`),
		[]string{"sharing.mpsConfig", "MPS"}},
	{"a MIG device's time slices with MPS", GPUDriver, mig(`{"strategy":"TimeSlicing","mpsConfig":{}}`), []string{"sharing.mpsConfig", "MPS"}},

	// Time slices.
	{"an unknown interval", GPUDriver, gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Eternal"}}`),
		[]string{"sharing.timeSlicingConfig.interval", `"Eternal"`, "Short"}},
	{"an empty interval", GPUDriver, gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":""}}`),
		[]string{"sharing.timeSlicingConfig.interval", "Default"}},
	{"an interval in milliseconds", GPUDriver, gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":30}}`),
		[]string{`sharing.timeSlicingConfig.interval: Invalid value: 30`, `a word`}},
	{"time slices that are a word", GPUDriver, gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":"Long"}`),
		[]string{`sharing.timeSlicingConfig: Invalid value: "Long"`, `an object`}},

	// MPS.
	{"more than all threads", GPUDriver, mps(`{"defaultActiveThreadPercentage":101}`),
		[]string{"defaultActiveThreadPercentage", "101", "between 0 and 100"}},
	{"fewer than no threads", GPUDriver, mps(`{"defaultActiveThreadPercentage":-1}`),
		[]string{"defaultActiveThreadPercentage", "-1", "between 0 and 100"}},
	{"half a percent", GPUDriver, mps(`{"defaultActiveThreadPercentage":0.5}`),
		[]string{`sharing.mpsConfig.defaultActiveThreadPercentage: Invalid value: 0.5`, `a whole number`}},
	{"threads in words", GPUDriver, mps(`{"defaultActiveThreadPercentage":"50"}`),
		[]string{`sharing.mpsConfig.defaultActiveThreadPercentage: Invalid value: "50"`, `a whole number`}},
	{"threads beyond any number", GPUDriver, mps(`{"defaultActiveThreadPercentage":99999999999999999999}`),
		[]string{`sharing.mpsConfig.defaultActiveThreadPercentage: Invalid value: 100000000000000000000`, `a whole number`}},
	{"a negative memory limit", GPUDriver, mps(`{"defaultPinnedDeviceMemoryLimit":"-1Gi"}`),
		[]string{"defaultPinnedDeviceMemoryLimit", "-1Gi", "1Mi"}},
	{"no memory", GPUDriver, mps(`{"defaultPinnedDeviceMemoryLimit":"0"}`), []string{`defaultPinnedDeviceMemoryLimit`, `"0"`, `1Mi`}},
	{"a byte of memory", GPUDriver, mps(`{"defaultPinnedDeviceMemoryLimit":"1"}`), []string{`defaultPinnedDeviceMemoryLimit`, `"1"`, `1Mi`}},
	{"memory that is no quantity", GPUDriver, mps(`{"defaultPinnedDeviceMemoryLimit":"lots"}`),
		[]string{"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "lots", "10Gi"}},
	{"memory that is an object", GPUDriver, mps(`{"defaultPinnedDeviceMemoryLimit":{}}`),
		[]string{"sharing.mpsConfig", "defaultPinnedDeviceMemoryLimit"}},
	{"a limit for a negative index", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"-1":"1Gi"}}`),
		[]string{"defaultPerDevicePinnedMemoryLimit[-1]", "index"}},
	{"a limit for a device by name", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"gpu-0":"1Gi"}}`),
		[]string{"defaultPerDevicePinnedMemoryLimit[gpu-0]", "UUID"}},
	{"a limit for half a UUID", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"GPU-4404041a":"1Gi"}}`),
		[]string{"GPU-4404041a", "UUID"}},
	{"an index twice in two spellings", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","00":"2Gi"}}`),
		[]string{`defaultPerDevicePinnedMemoryLimit[00]`, `"00"`, `from 0`}},
	{"an index twice", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","0":"2Gi"}}`), []string{"duplicate field"}},
	{"an index beyond a claim's devices", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"32":"1Gi"}}`),
		[]string{`defaultPerDevicePinnedMemoryLimit[32]`, `"32"`, `below 32`}},
	{"an index with a sign", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"+1":"1Gi"}}`),
		[]string{`defaultPerDevicePinnedMemoryLimit[+1]`, `"+1"`, `from 0`}},
	{"a negative limit for an index", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":{"0":"-5Mi"}}`),
		[]string{`defaultPerDevicePinnedMemoryLimit[0]`, `-5Mi`, `1Mi`}},
	{"limits that are a list", GPUDriver, mps(`{"defaultPerDevicePinnedMemoryLimit":["1Gi"]}`),
		[]string{`sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: Invalid value: ["1Gi"]`, `an object`}},
	{"MPS that is a word", GPUDriver, mps(`"yes"`), []string{`sharing.mpsConfig: Invalid value: "yes"`, `an object`}},
	{"a MIG device's threads", GPUDriver, mig(`{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":500}}`),
		[]string{"defaultActiveThreadPercentage", "500"}},

	// Compute domains.
	{"a channel of no domain", ComputeDomainDriver, channel(``), []string{"domainID", "Required"}},
	{"a channel of an empty domain", ComputeDomainDriver, channel(`,"domainID":""`), []string{"domainID", "Required"}},
	{"a channel of a domain by name", ComputeDomainDriver, channel(`,"domainID":"my-domain"`), []string{"domainID", `"my-domain"`, "UID"}},
	{"a domain that leaves its directory", ComputeDomainDriver, daemon(`,"domainID":"../../etc"`), []string{`domainID`, `"../../etc"`, `UID`}},
	{"an unknown allocation mode", ComputeDomainDriver, channel(domain + `,"allocationMode":"Some"`),
		[]string{"allocationMode", `"Some"`, "Single", "All"}},
	{"a daemon with an allocation mode", ComputeDomainDriver, daemon(domain + `,"allocationMode":"All"`),
		[]string{`unknown field "allocationMode"`}},
	{"a domain that is a number", ComputeDomainDriver, channel(`,"domainID":7`), []string{`domainID: Invalid value: 7`, `a word`}},
}

func TestValidationNamesFieldAndValue(t *testing.T) {
	if len(wrong) < 60 {
		t.Errorf("%d cases", len(wrong))
	}
	for _, c := range wrong {
		t.Run(c.name, func(t *testing.T) {
			config, err := Decode(c.driver, []byte(c.raw))
			if err == nil {
				t.Fatalf("accepted as %+v", config)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the refusal %q does not say %q", err, want)
				}
			}
			if len(err.Error()) > 800 {
				t.Errorf("the refusal has %d bytes", len(err.Error()))
			}
		})
	}
}

// right are configurations as existing manifests write them.
var right = map[string]string{
	"nothing said":                 gpu(`null`),
	"no sharing":                   `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`,
	"time slices":                  gpu(`{"strategy":"TimeSlicing"}`),
	"time slices with nothing":     gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{}}`),
	"time slices with null":        gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":null}`),
	"time slices with null inside": gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":null}}`),
	"long time slices":             gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`),
	"MPS":                          gpu(`{"strategy":"MPS"}`),
	"MPS with null":                gpu(`{"strategy":"MPS","mpsConfig":null}`),
	"MPS with everything": mps(`{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi",` +
		`"defaultPerDevicePinnedMemoryLimit":{"0":"5Gi","GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c":"6Gi"}}`),
	"MPS with all threads":  mps(`{"defaultActiveThreadPercentage":100}`),
	"a MIG device":          mig(`null`),
	"a MIG device with MPS": mig(`{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":10}}`),
}

func TestValidationAcceptsExistingManifests(t *testing.T) {
	for name, raw := range right {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode(GPUDriver, []byte(raw)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestValidationDefaultsAnRDMAConfiguration(t *testing.T) {
	config, err := Decode(RDMADriver, []byte(rdma(`"network":"Exclusive"`)))
	if err != nil {
		t.Fatal(err)
	}
	want := &v1alpha1.RDMAConfig{APIVersion: "gpufabric.io/v1alpha1", Kind: "RDMAConfig", Environment: v1alpha1.RDMAEnvironmentNCCL,
		Network: v1alpha1.RDMANetworkExclusive}
	if diff := cmp.Diff(want, config); diff != "" {
		t.Error(diff)
	}
}

func claim(configs ...resourceapi.DeviceClaimConfiguration) *resourceapi.ResourceClaimSpec {
	return &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Config: configs}}
}

func config(driver, raw string, requests ...string) resourceapi.DeviceClaimConfiguration {
	return resourceapi.DeviceClaimConfiguration{Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}},
	}}
}

// A claim may have one configuration for all requests and another for one of them: the later one wins in prepare, as in NVIDIA's
// DRA driver and in Kubernetes.
func TestConfigurationsOfOneClaimMayOverlap(t *testing.T) {
	long, short := gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`),
		gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short"}}`)
	for name, spec := range map[string]*resourceapi.ResourceClaimSpec{
		"two ways for every request":        claim(config(GPUDriver, long), config(GPUDriver, short)),
		"two ways for one request":          claim(config(GPUDriver, long, "a"), config(GPUDriver, short, "b", "a")),
		"one way for all, another for one":  claim(config(GPUDriver, long), config(GPUDriver, short, "b")),
		"a request and its subrequest":      claim(config(GPUDriver, long, "a"), config(GPUDriver, short, "a/big")),
		"two ways for two requests":         claim(config(GPUDriver, long, "a"), config(GPUDriver, short, "b")),
		"the same way twice":                claim(config(GPUDriver, long), config(GPUDriver, long)),
		"GPUs one way, MIG devices another": claim(config(GPUDriver, long), config(GPUDriver, mig(`{"strategy":"MPS"}`))),
		"another driver's configuration":    claim(config("other.example.com", `{"anything":1}`)),
		"no opaque part":                    claim(resourceapi.DeviceClaimConfiguration{}),
	} {
		t.Run(name, func(t *testing.T) {
			if errs := Claim(spec, field.NewPath("spec")); len(errs) > 0 {
				t.Error(errs.ToAggregate())
			}
		})
	}
}

func TestValidationChecksDeviceClasses(t *testing.T) {
	spec := &resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: config(GPUDriver,
		gpu(`{}`)).DeviceConfiguration}}}
	errs := DeviceClass(spec, field.NewPath("spec"))
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "spec.config[0].opaque.parameters") ||
		!strings.Contains(errs[0].Error(), "sharing.strategy") {
		t.Errorf("got %v", errs)
	}
}

func TestValidationIsEqualForClaimsAndClasses(t *testing.T) {
	for _, c := range wrong {
		t.Run(c.name, func(t *testing.T) {
			one := config(c.driver, c.raw)
			right := resourceapi.DeviceClaimConfiguration{DeviceConfiguration: config(GPUDriver, right["MPS"]).DeviceConfiguration,
				Requests: []string{"other"}}
			one.Requests = []string{"this"}
			for path, errs := range map[string]field.ErrorList{
				"spec.devices.config[1].opaque.parameters": Claim(claim(right, one), field.NewPath("spec")),
				"spec.config[1].opaque.parameters": DeviceClass(&resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{
					{DeviceConfiguration: right.DeviceConfiguration}, {DeviceConfiguration: one.DeviceConfiguration},
				}}, field.NewPath("spec")),
			} {
				if len(errs) != 1 || errs[0].Field != path || !strings.Contains(errs[0].Detail, c.want[0]) {
					t.Errorf("got %v, want one error at %s that says %s", errs, path, c.want[0])
				}
			}
		})
	}
}

// FuzzDecode checks that every wrong configuration is refused, and that an accepted one has every field that a driver reads.
func FuzzDecode(f *testing.F) {
	for _, c := range wrong {
		f.Add(c.driver, []byte(c.raw))
	}
	for _, raw := range right {
		f.Add(GPUDriver, []byte(raw))
	}
	f.Fuzz(func(t *testing.T, driver string, raw []byte) {
		config, err := Decode(driver, raw)
		if (err == nil) == (config == nil) {
			t.Fatalf("%v and %v", config, err)
		}
		if err != nil {
			return
		}
		if errs := config.Validate(); len(errs) > 0 {
			t.Fatalf("accepted, but not valid: %v", errs)
		}
	})
}

// Only the author of a DeviceClass may set the time slice for all shares of a GPU.
func TestValidationRejectsATimeSliceOfAShare(t *testing.T) {
	amount := func(names ...resourceapi.QualifiedName) *resourceapi.CapacityRequirements {
		c := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for _, name := range names {
			c.Requests[name] = resource.MustParse("1")
		}
		return c
	}
	exactly := func(class string, c *resourceapi.CapacityRequirements) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Capacity: c}}
	}
	whole := resourceapi.DeviceRequest{Name: "w", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com"}}
	const long = `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`
	for _, test := range []struct {
		name     string
		requests []resourceapi.DeviceRequest
		applies  []string
		sharing  string
		refused  bool
	}{
		{"of the class of shares", []resourceapi.DeviceRequest{exactly("gpu-share.gpufabric.io", nil)}, nil, long, true},
		{"of some memory", []resourceapi.DeviceRequest{exactly("gpu.nvidia.com", amount("memory"))}, nil, long, true},
		{"of some cores by their full name", []resourceapi.DeviceRequest{exactly("gpu.nvidia.com", amount("gpu.nvidia.com/cores"))},
			[]string{"r"},
			long, true},
		{"as an alternative", []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "big", DeviceClassName: "gpu.nvidia.com"}, {Name: "small", DeviceClassName: "gpu-share.gpufabric.io"}}}},
			[]string{"r/small"}, long, true},
		{"with the default by name", []resourceapi.DeviceRequest{exactly("gpu-share.gpufabric.io", nil)}, nil,
			`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}`, true},
		{"of a whole GPU", []resourceapi.DeviceRequest{whole}, nil, long, false},
		{"of a whole GPU beside a share", []resourceapi.DeviceRequest{whole, exactly("gpu-share.gpufabric.io", nil)}, []string{"w"}, long, false},
		{"without an interval", []resourceapi.DeviceRequest{exactly("gpu-share.gpufabric.io", nil)}, nil, `{"strategy":"TimeSlicing"}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec := &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: test.requests,
				Config: []resourceapi.DeviceClaimConfiguration{{Requests: test.applies, DeviceConfiguration: resourceapi.DeviceConfiguration{
					Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: GPUDriver,
						Parameters: runtime.RawExtension{Raw: []byte(gpu(test.sharing))}}}}}}}
			errs := Claim(spec, field.NewPath("spec"))
			if refused := len(errs) > 0; refused != test.refused {
				t.Fatalf("refused %t, want %t: %v", refused, test.refused, errs)
			}
			if !test.refused {
				return
			}
			said := errs.ToAggregate().Error()
			if want := "spec.devices.config[0].opaque.parameters.sharing.timeSlicingConfig.interval"; !strings.Contains(said, want) ||
				!strings.Contains(said, "DeviceClass") {
				t.Errorf("%q does not name %s and the remedy", said, want)
			}
			t.Logf("attacker sees: %s", said)
		})
	}
}
