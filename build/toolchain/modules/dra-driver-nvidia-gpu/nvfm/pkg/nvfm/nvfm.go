// Package nvfm stands in for NVIDIA's bindings of its fabric manager, which not every module proxy serves. The DRA driver compiles against
// it and opens it only with its feature gate FabricManagerPartitioning, which our tests leave off: every call here says that there is no
// library.
package nvfm

// Return is what a call came to.
type Return int

// The returns: what a caller compares with, and the only one given.
const (
	SUCCESS   Return = 0
	NO_BINDER Return = -1
)

// Error says what the return means.
func (r Return) Error() string { return r.String() }

// String says what the return means.
func (r Return) String() string {
	if r == SUCCESS {
		return "success"
	}
	return "built without the bindings of NVIDIA's fabric manager"
}

// FabricPartitionId numbers a partition.
type FabricPartitionId uint32

// FabricPartitionGpuInfo is a GPU of a partition.
type FabricPartitionGpuInfo struct {
	PhysicalId          uint32
	Uuid, PciBusId      [80]int8
	NumNvLinksAvailable uint32
	MaxNumNvLinks       uint32
	NvlinkLineRateMBps  uint32
}

// FabricPartitionInfo is one partition.
type FabricPartitionInfo struct {
	PartitionId FabricPartitionId
	IsActive    uint32
	NumGpus     uint32
	GpuInfo     [16]FabricPartitionGpuInfo
}

// FabricPartitionList is every partition.
type FabricPartitionList struct {
	NumPartitions uint32
	PartitionInfo [64]FabricPartitionInfo
}

// LibraryOption and ConnectOption configure nothing.
type (
	LibraryOption struct{}
	ConnectOption struct{}
)

// Interface opens connections.
type Interface interface {
	Init() Return
	Shutdown() Return
	Connect(...ConnectOption) (Handle, Return)
}

// Handle is a connection.
type Handle interface {
	Disconnect() Return
	GetSupportedFabricPartitions() (FabricPartitionList, Return)
	ActivateFabricPartition(FabricPartitionId) Return
	DeactivateFabricPartition(FabricPartitionId) Return
}

// New gives a library that is not there.
func New(...LibraryOption) Interface { return absent{} }

// WithLibraryPath, WithUnixSocket, WithAddress and WithTimeoutMs take what the real ones take.
func WithLibraryPath(string) LibraryOption { return LibraryOption{} }
func WithUnixSocket(string) ConnectOption  { return ConnectOption{} }
func WithAddress(string) ConnectOption     { return ConnectOption{} }
func WithTimeoutMs(uint32) ConnectOption   { return ConnectOption{} }

type absent struct{}

func (absent) Init() Return                              { return NO_BINDER }
func (absent) Shutdown() Return                          { return NO_BINDER }
func (absent) Connect(...ConnectOption) (Handle, Return) { return nil, NO_BINDER }
