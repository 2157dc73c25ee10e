package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ComputeDomainChannelConfig configures a channel of compute-domain.nvidia.com. The controller writes it into the template that
// pods of a domain name.
type ComputeDomainChannelConfig struct {
	metav1.TypeMeta `json:",inline"`
	// DomainID is the ComputeDomain's UID.
	DomainID string `json:"domainID"`
	// AllocationMode is the number of channels that the claim gets; empty means Single.
	AllocationMode AllocationMode `json:"allocationMode,omitempty"`
}

// ComputeDomainDaemonConfig configures the daemon device of compute-domain.nvidia.com. The controller writes it into the template
// that the domain's IMEX daemons use.
type ComputeDomainDaemonConfig struct {
	metav1.TypeMeta `json:",inline"`
	// DomainID is the ComputeDomain's UID.
	DomainID string `json:"domainID"`
}

// GpuConfig configures whole GPUs of gpu.nvidia.com.
type GpuConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Sharing is how containers that hold the same GPU share it. Absent: TimeSlicing with the default interval.
	Sharing *GpuSharing `json:"sharing,omitempty"`
}

// MigDeviceConfig configures MIG devices of gpu.nvidia.com.
type MigDeviceConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Sharing is how containers that hold the same MIG device share it.
	Sharing *MigDeviceSharing `json:"sharing,omitempty"`
}

// VfioDeviceConfig configures GPUs that are passed through to a virtual machine.
type VfioDeviceConfig struct {
	metav1.TypeMeta `json:",inline"`
	// IOMMU selects the interface of the kernel by which the virtual machine reaches the GPU. Absent: LegacyOnly, without the API device.
	IOMMU *IOMMU `json:"iommu,omitempty"`
}

// IOMMUBackendPolicy chooses between the kernel's two interfaces of VFIO.
type IOMMUBackendPolicy string

// The policies.
const (
	// LegacyOnly gives the container /dev/vfio/GROUP.
	LegacyOnly IOMMUBackendPolicy = "LegacyOnly"
	// PreferIOMMUFD gives it /dev/vfio/devices/vfioN where the node has iommufd, else the same as LegacyOnly.
	PreferIOMMUFD IOMMUBackendPolicy = "PreferIommuFD"
)

// IOMMU chooses the interface of VFIO.
type IOMMU struct {
	// BackendPolicy is LegacyOnly or PreferIommuFD; empty means LegacyOnly.
	BackendPolicy IOMMUBackendPolicy `json:"backendPolicy,omitempty"`
	// EnableAPIDevice adds /dev/vfio/vfio, or /dev/iommu with iommufd; absent means false.
	EnableAPIDevice *bool `json:"enableAPIDevice,omitempty"`
}

// SharingStrategy is how a device is shared.
type SharingStrategy string

// The sharing strategies.
const (
	TimeSlicing SharingStrategy = "TimeSlicing"
	MPS         SharingStrategy = "MPS"
)

// GpuSharing is how a GPU is shared. Only the section of its strategy may be given.
type GpuSharing struct {
	Strategy          SharingStrategy    `json:"strategy"`
	TimeSlicingConfig *TimeSlicingConfig `json:"timeSlicingConfig,omitempty"`
	MpsConfig         *MpsConfig         `json:"mpsConfig,omitempty"`
}

// MigDeviceSharing is how a MIG device is shared. The length of a MIG device's time slices cannot be chosen.
type MigDeviceSharing struct {
	Strategy  SharingStrategy `json:"strategy"`
	MpsConfig *MpsConfig      `json:"mpsConfig,omitempty"`
}

// TimeSliceInterval is how long a process has the GPU before the next one.
type TimeSliceInterval string

// The intervals of the driver's compute policy.
const (
	DefaultTimeSlice TimeSliceInterval = "Default"
	ShortTimeSlice   TimeSliceInterval = "Short"
	MediumTimeSlice  TimeSliceInterval = "Medium"
	LongTimeSlice    TimeSliceInterval = "Long"
)

// TimeSlicingConfig configures time slicing.
type TimeSlicingConfig struct {
	// Interval of a slice; absent means Default.
	Interval *TimeSliceInterval `json:"interval,omitempty"`
}

// MpsConfig configures the MPS control daemon of a claim.
type MpsConfig struct {
	// DefaultActiveThreadPercentage of the device's threads that one client may use, 0 to 100.
	DefaultActiveThreadPercentage *int `json:"defaultActiveThreadPercentage,omitempty"`
	// DefaultPinnedDeviceMemoryLimit is how much device memory one client may pin on every device.
	DefaultPinnedDeviceMemoryLimit *resource.Quantity `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	// DefaultPerDevicePinnedMemoryLimit is the same for single devices, by UUID or by index in the claim. It takes precedence.
	DefaultPerDevicePinnedMemoryLimit map[string]resource.Quantity `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser lets clients of several Linux users share the GPU at the same time, by one MPS server. Without it the clients of a second user
	// wait until those of the first have ended. A fault of one client ends the work of all. It needs a driver whose control daemon knows
	// -multiuser-server.
	MultiUser *bool `json:"multiUser,omitempty"`
}
