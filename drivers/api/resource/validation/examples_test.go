package validation

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// TestValidationAcceptsExamplesOfNVIDIAsDRADriver has an equivalent of each example of release 0.5 that has a configuration or a
// constraint. docs/reports/nvidia-examples.md has the table.
func TestValidationAcceptsExamplesOfNVIDIAsDRADriver(t *testing.T) {
	const head = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":`
	for name, c := range map[string]struct {
		driver, config, match, refused string
	}{
		"time slices of a GPU":        {GPUDriver, gpu(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`), "", ""},
		"time slices by default":      {GPUDriver, gpu(`{"strategy":"TimeSlicing"}`), "", ""},
		"time slices of a MIG device": {GPUDriver, head + `"MigDeviceConfig","sharing":{"strategy":"TimeSlicing"}}`, "", ""},
		"MPS with limits": {GPUDriver, gpu(`{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,` +
			`"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"5Gi"}}}`), "", ""},
		"MPS":                    {GPUDriver, gpu(`{"strategy":"MPS"}`), "", ""},
		"MIG devices of one GPU": {"", "", "gpu.nvidia.com/parentUUID", ""},
		"passthrough":            {GPUDriver, head + `"VfioDeviceConfig"}`, "", ""},
		"passthrough with its IOMMU": {GPUDriver, head + `"VfioDeviceConfig","iommu":{"backendPolicy":"LegacyOnly",` +
			`"enableAPIDevice":true}}`, "", ""},
		"passthrough by iommufd":       {GPUDriver, head + `"VfioDeviceConfig","iommu":{"backendPolicy":"PreferIommuFD"}}`, "", ""},
		"a channel":                    {ComputeDomainDriver, channel(domain), "", ""},
		"partitions of Fabric Manager": {"", "", "gpu.nvidia.com/partition2", ""},
		"an unknown field": {ComputeDomainDriver, head + `"ComputeDomainChannelConfig"` + domain + `,"unexpectedField":"foo"}`, "",
			`unknown field "unexpectedField"`},
	} {
		t.Run(name, func(t *testing.T) {
			var spec resourceapi.ResourceClaimSpec
			if c.config != "" {
				spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
					Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: c.driver, Parameters: runtime.RawExtension{Raw: []byte(c.config)}}}}}
			}
			if c.match != "" {
				spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(c.match))}}
			}
			errs := Claim(&spec, field.NewPath("spec"))
			if c.refused == "" && len(errs) > 0 || c.refused != "" && !strings.Contains(fmt.Sprint(errs.ToAggregate()), c.refused) {
				t.Errorf("got %v, want an error with %q", errs, c.refused)
			}
		})
	}
}
