package v1beta1

import (
	"strings"
	"testing"
)

const uid = "0f1c5d5e-9a5b-4f6e-8c39-5b2d6b0f8a11"

func config(kind, rest string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"` + rest + `}`
}

func TestConfigurationsOfExistingManifestsAreRead(t *testing.T) {
	for name, text := range map[string]string{
		"a channel":                          config("ComputeDomainChannelConfig", `,"domainID":"`+uid+`","allocationMode":"All"`),
		"a channel without a mode":           config("ComputeDomainChannelConfig", `,"domainID":"`+uid+`"`),
		"a daemon":                           config("ComputeDomainDaemonConfig", `,"domainID":"`+uid+`"`),
		"a GPU without sharing":              config("GpuConfig", ``),
		"time slicing without a section":     config("GpuConfig", `,"sharing":{"strategy":"TimeSlicing"}`),
		"time slicing with an empty section": config("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`),
		"time slicing with an interval": config("GpuConfig",
			`,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`),
		"MPS without limits": config("GpuConfig", `,"sharing":{"strategy":"MPS"}`),
		"MPS with limits": config("GpuConfig",
			`,"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi"}}`),
		"MPS with a limit by index": config("GpuConfig",
			`,"sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi"}}}`),
		"MPS with a limit by UUID": config("GpuConfig",
			`,"sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"GPU-`+uid+`":"1Gi"}}}`),
		"a MIG device without sharing":        config("MigDeviceConfig", ``),
		"a MIG device shared by time slicing": config("MigDeviceConfig", `,"sharing":{"strategy":"TimeSlicing"}`),
		"a MIG device shared by MPS": config("MigDeviceConfig",
			`,"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":0}}`),
		"a GPU for a virtual machine": config("VfioDeviceConfig", ``),
		"a GPU for a virtual machine by iommufd": config("VfioDeviceConfig",
			`,"iommu":{"backendPolicy":"PreferIommuFD","enableAPIDevice":true}`),
		"a GPU for a virtual machine with the API device alone": config("VfioDeviceConfig", `,"iommu":{"enableAPIDevice":true}`),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode([]byte(text)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWrongConfigurationsAreRefusedByFieldAndValue(t *testing.T) {
	sharing := func(rest string) string { return config("GpuConfig", `,"sharing":`+rest) }
	mps := func(rest string) string { return sharing(`{"strategy":"MPS","mpsConfig":` + rest + `}`) }
	for name, c := range map[string]struct{ text, says string }{
		"nothing":                     {"", "not a JSON object"},
		"null":                        {"null", "apiVersion"},
		"a list":                      {"[]", "not a JSON object"},
		"half an object":              {`{"apiVersion":`, "not a JSON object"},
		"not UTF-8":                   {config("GpuConfig", "") + "\xff", "not UTF-8"},
		"too much":                    {config("GpuConfig", `,"x":"`+strings.Repeat("x", 11<<10)+`"`), "at most 10240"},
		"no version":                  {`{"kind":"GpuConfig"}`, "apiVersion"},
		"another version":             {`{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`, `"resource.nvidia.com/v1beta1"`},
		"another group":               {`{"apiVersion":"gpu.nvidia.com/v1beta1","kind":"GpuConfig"}`, `"resource.nvidia.com/v1beta1"`},
		"no kind":                     {config("", ""), "GpuConfig, MigDeviceConfig"},
		"an unknown kind":             {config("GPUConfig", ""), "ComputeDomainChannelConfig"},
		"an unknown field":            {config("GpuConfig", `,"sharring":{}`), "sharring"},
		"a field in other case":       {config("GpuConfig", `,"Sharing":{}`), "Sharing"},
		"a field twice":               {config("GpuConfig", `,"sharing":null,"sharing":null`), "duplicate"},
		"a field of another type":     {sharing(`"MPS"`), "sharing"},
		"an empty sharing":            {sharing(`{}`), "sharing.strategy"},
		"an unknown strategy":         {sharing(`{"strategy":"mps"}`), `"MPS"`},
		"an unknown interval":         {sharing(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Forever"}}`), `"Default"`},
		"an empty interval":           {sharing(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":""}}`), "interval"},
		"MPS limits for time slicing": {sharing(`{"strategy":"TimeSlicing","mpsConfig":{}}`), "sharing.mpsConfig"},
		"an interval for MPS":         {sharing(`{"strategy":"MPS","timeSlicingConfig":{}}`), "sharing.timeSlicingConfig"},
		"101 percent":                 {mps(`{"defaultActiveThreadPercentage":101}`), "between 0 and 100"},
		"less than nothing":           {mps(`{"defaultActiveThreadPercentage":-1}`), "between 0 and 100"},
		"half a percent":              {mps(`{"defaultActiveThreadPercentage":0.5}`), "defaultActiveThreadPercentage"},
		"negative memory":             {mps(`{"defaultPinnedDeviceMemoryLimit":"-1Gi"}`), "at least 1Mi"},
		"hardly any memory":           {mps(`{"defaultPinnedDeviceMemoryLimit":"1k"}`), "at least 1Mi"},
		"memory in words": {mps(`{"defaultPinnedDeviceMemoryLimit":"much"}`),
			`sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: Invalid value: "much"`},
		"a limit for a device by name":    {mps(`{"defaultPerDevicePinnedMemoryLimit":{"gpu-0":"1Gi"}}`), "gpu-0"},
		"a limit for a device below none": {mps(`{"defaultPerDevicePinnedMemoryLimit":{"-1":"1Gi"}}`), "-1"},
		"a negative limit for a device":   {mps(`{"defaultPerDevicePinnedMemoryLimit":{"0":"-1Gi"}}`), "at least 1Mi"},
		"an interval for a MIG device": {config("MigDeviceConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`),
			"timeSlicingConfig"},
		"a channel without a domain":         {config("ComputeDomainChannelConfig", ``), "domainID"},
		"a channel of a domain by name":      {config("ComputeDomainChannelConfig", `,"domainID":"my-domain"`), "my-domain"},
		"a domain that leaves its directory": {config("ComputeDomainDaemonConfig", `,"domainID":"../../etc"`), "domainID"},
		"a channel with a mode of its own":   {config("ComputeDomainChannelConfig", `,"domainID":"`+uid+`","allocationMode":"Some"`), `"Single"`},
		"a daemon with a mode": {config("ComputeDomainDaemonConfig", `,"domainID":"`+uid+`","allocationMode":"All"`),
			"allocationMode"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 1000 {
				t.Errorf("error %v does not say %q in a few words", err, c.says)
			}
		})
	}
}

// FuzzDecode checks that no input makes a driver panic, and that what is accepted is valid.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(config("GpuConfig", `,"sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi"}}}`)))
	f.Add([]byte(config("ComputeDomainChannelConfig", `,"domainID":"`+uid+`"`)))
	f.Add([]byte(config("MigDeviceConfig", `,"sharing":null`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		config, err := Decode(text)
		if err != nil {
			return
		}
		if errs := config.Validate(); len(errs) > 0 {
			t.Fatalf("accepted, but %v", errs)
		}
	})
}
