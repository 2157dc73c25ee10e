package v1beta1

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// uidPattern is the form of a UID that the API server makes.
var uidPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// gpuUUIDPattern is the form of a GPU's or a MIG device's UUID.
var gpuUUIDPattern = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// Default implements Config.
func (c *ComputeDomainChannelConfig) Default() {
	if c.AllocationMode == "" {
		c.AllocationMode = AllocationModeSingle
	}
}

// Validate implements Config.
func (c *ComputeDomainChannelConfig) Validate() field.ErrorList {
	errs := validateDomainID(c.DomainID)
	if c.AllocationMode != AllocationModeSingle && c.AllocationMode != AllocationModeAll {
		errs = append(errs, field.NotSupported(field.NewPath("allocationMode"), c.AllocationMode,
			[]AllocationMode{AllocationModeSingle, AllocationModeAll}))
	}
	return errs
}

// Default implements Config.
func (c *ComputeDomainDaemonConfig) Default() {}

// Validate implements Config.
func (c *ComputeDomainDaemonConfig) Validate() field.ErrorList { return validateDomainID(c.DomainID) }

func validateDomainID(id string) field.ErrorList {
	path := field.NewPath("domainID")
	if id == "" {
		return field.ErrorList{field.Required(path, "the UID of a ComputeDomain")}
	}
	if !uidPattern.MatchString(id) {
		return field.ErrorList{field.Invalid(path, id, "must be the UID of a ComputeDomain, like 0f1c5d5e-9a5b-4f6e-8c39-5b2d6b0f8a11")}
	}
	return nil
}

// Default implements Config.
func (c *GpuConfig) Default() {
	if c.Sharing == nil {
		c.Sharing = &GpuSharing{Strategy: TimeSlicing}
	}
	if c.Sharing.Strategy != TimeSlicing {
		return
	}
	if c.Sharing.TimeSlicingConfig == nil {
		c.Sharing.TimeSlicingConfig = &TimeSlicingConfig{}
	}
	if c.Sharing.TimeSlicingConfig.Interval == nil {
		interval := DefaultTimeSlice
		c.Sharing.TimeSlicingConfig.Interval = &interval
	}
}

// Validate implements Config.
func (c *GpuConfig) Validate() field.ErrorList {
	if c.Sharing == nil {
		return nil
	}
	path := field.NewPath("sharing")
	errs := validateStrategy(path, c.Sharing.Strategy)
	if slicing := c.Sharing.TimeSlicingConfig; slicing != nil {
		at := path.Child("timeSlicingConfig")
		if c.Sharing.Strategy == MPS {
			errs = append(errs, field.Forbidden(at, "only allowed with strategy TimeSlicing"))
		}
		allowed := []TimeSliceInterval{DefaultTimeSlice, ShortTimeSlice, MediumTimeSlice, LongTimeSlice}
		if slicing.Interval != nil && !slices.Contains(allowed, *slicing.Interval) {
			errs = append(errs, field.NotSupported(at.Child("interval"), *slicing.Interval, allowed))
		}
	}
	return append(errs, validateMps(path, c.Sharing.Strategy, c.Sharing.MpsConfig)...)
}

// Default implements Config.
func (c *MigDeviceConfig) Default() {
	if c.Sharing == nil {
		c.Sharing = &MigDeviceSharing{Strategy: TimeSlicing}
	}
}

// Validate implements Config.
func (c *MigDeviceConfig) Validate() field.ErrorList {
	if c.Sharing == nil {
		return nil
	}
	path := field.NewPath("sharing")
	return append(validateStrategy(path, c.Sharing.Strategy), validateMps(path, c.Sharing.Strategy, c.Sharing.MpsConfig)...)
}

// Default implements Config.
func (c *VfioDeviceConfig) Default() {
	if c.IOMMU == nil {
		c.IOMMU = &IOMMU{}
	}
	if c.IOMMU.BackendPolicy == "" {
		c.IOMMU.BackendPolicy = LegacyOnly
	}
	if c.IOMMU.EnableAPIDevice == nil {
		c.IOMMU.EnableAPIDevice = new(bool)
	}
}

// Validate implements Config.
func (c *VfioDeviceConfig) Validate() field.ErrorList {
	allowed := []IOMMUBackendPolicy{LegacyOnly, PreferIOMMUFD}
	if c.IOMMU == nil || slices.Contains(allowed, c.IOMMU.BackendPolicy) {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath("iommu", "backendPolicy"), c.IOMMU.BackendPolicy, allowed)}
}

func validateStrategy(path *field.Path, strategy SharingStrategy) field.ErrorList {
	allowed := []SharingStrategy{TimeSlicing, MPS}
	switch {
	case strategy == "":
		return field.ErrorList{field.Required(path.Child("strategy"), "allowed are TimeSlicing and MPS")}
	case !slices.Contains(allowed, strategy):
		return field.ErrorList{field.NotSupported(path.Child("strategy"), strategy, allowed)}
	}
	return nil
}

func validateMps(path *field.Path, strategy SharingStrategy, config *MpsConfig) field.ErrorList {
	if config == nil {
		return nil
	}
	at := path.Child("mpsConfig")
	var errs field.ErrorList
	if strategy == TimeSlicing {
		errs = append(errs, field.Forbidden(at, "only allowed with strategy MPS"))
	}
	if p := config.DefaultActiveThreadPercentage; p != nil && (*p < 0 || *p > 100) {
		errs = append(errs, field.Invalid(at.Child("defaultActiveThreadPercentage"), *p, "must be between 0 and 100"))
	}
	if limit := config.DefaultPinnedDeviceMemoryLimit; limit != nil {
		errs = append(errs, validateMemory(at.Child("defaultPinnedDeviceMemoryLimit"), *limit)...)
	}
	for _, key := range slices.Sorted(maps.Keys(config.DefaultPerDevicePinnedMemoryLimit)) {
		limit := config.DefaultPerDevicePinnedMemoryLimit[key]
		entry := at.Child("defaultPerDevicePinnedMemoryLimit").Key(key)
		// 00 and +1 are refused: one device could then have two limits.
		if index, err := strconv.Atoi(key); (err != nil || index < 0 || strconv.Itoa(index) != key) && !gpuUUIDPattern.MatchString(key) {
			errs = append(errs, field.Invalid(entry, key, "must be a device's UUID (GPU-...) or its index in the claim, from 0"))
		} else if err == nil && index >= resourceapi.AllocationResultsMaxSize {
			errs = append(errs, field.Invalid(entry, key, fmt.Sprintf("must be below %d: no claim has more devices",
				resourceapi.AllocationResultsMaxSize)))
		}
		errs = append(errs, validateMemory(entry, limit)...)
	}
	return errs
}

// validateMemory checks a limit that MPS accepts only in whole mebibytes.
func validateMemory(path *field.Path, limit resource.Quantity) field.ErrorList {
	const mebibyte = 1 << 20
	if limit.Cmp(*resource.NewQuantity(mebibyte, resource.BinarySI)) < 0 {
		return field.ErrorList{field.Invalid(path, limit.String(), "must be at least 1Mi")}
	}
	return nil
}
