// Package computedomain holds the names that the controller, the node plugin and the IMEX daemon of compute domains agree on.
//
// How a domain forms: a user creates a ComputeDomain; the controller makes the ResourceClaimTemplate that it names, and a DaemonSet
// for nodes that carry the domain's label. A pod with a claim from that template lands on a node; the node plugin there labels the
// node, which brings the domain's IMEX daemon, and lets the pod start once that daemon is ready. The controller sees the daemon
// pods, numbers the nodes of each clique and writes them into the domain's status, where the daemons read who their peers are.
// Nobody polls, and each node costs two writes: its label, and its part in a status patch.
package computedomain

import resourceapi "k8s.io/api/resource/v1"

// Names under which devices are published and claimed.
const (
	// Driver is the DRA driver.
	Driver = "compute-domain.nvidia.com"
	// ChannelClass and DaemonClass are the DeviceClasses of what the driver publishes.
	ChannelClass = "compute-domain-default-channel.nvidia.com"
	DaemonClass  = "compute-domain-daemon.nvidia.com"
	// ChannelDevice and DaemonDevice are the devices of every node.
	ChannelDevice = "channel-0"
	DaemonDevice  = "daemon-0"
	// AttributeType and AttributeID tell devices apart; the type of a device is TypeChannel or TypeDaemon.
	AttributeType resourceapi.QualifiedName = "type"
	AttributeID   resourceapi.QualifiedName = "id"
	TypeChannel                             = "channel"
	TypeDaemon                              = "daemon"
	// AttributeClique is the node's clique, on nodes that have one.
	AttributeClique resourceapi.QualifiedName = "cliqueID"
	// TaintFabric keeps pods away from the channel of a node whose fabric is not usable; its value says why.
	TaintFabric = "compute-domain.nvidia.com/fabric"
)

// PoolName is the name of a node's pool.
func PoolName(node string) string { return node + "-compute-domain" }

// Names on the controller's objects.
const (
	// Finalizer holds a ComputeDomain until everything that was made for it is gone.
	Finalizer = "resource.nvidia.com/computeDomain"
	// AnnotationName and AnnotationNamespace on a claim say which ComputeDomain its config's domainID is, so that it need not be
	// searched for. On a tenant's claim they are a hint that is checked; on a daemon's claim, which only the controller makes, they
	// are relied on.
	AnnotationName      = "resource.nvidia.com/computeDomainName"
	AnnotationNamespace = "resource.nvidia.com/computeDomainNamespace"
	// DaemonContainer is the container of the daemon pods.
	DaemonContainer = "imex-daemon"
)

// What a daemon's container is given with its device.
const (
	EnvClique    = "CLIQUE_ID"
	EnvUID       = "COMPUTE_DOMAIN_UUID"
	EnvName      = "COMPUTE_DOMAIN_NAME"
	EnvNamespace = "COMPUTE_DOMAIN_NAMESPACE"
	// EnvProgram and EnvControl are nvidia-imex and nvidia-imex-ctl, EnvLoader what starts them: the node's own loader, with the
	// libraries beside it. It is not set for programs that need none.
	EnvProgram = "IMEX_PROGRAM"
	EnvControl = "IMEX_CONTROL"
	EnvLoader  = "IMEX_LOADER"
	// DaemonDir is where the domain's directory on the node is mounted.
	DaemonDir = "/imexd"
	// PersistDir is where nvidia-imex keeps persist.dat: what it must know after an end that was not in order. It lies in the
	// domain's directory on the node, since it must outlive the container.
	PersistDir = "/var/run/nvidia-imex"
	// DriverDir holds what the container has of the node's driver: bin and lib.
	DriverDir = "/driver"
)

// Ports of a daemon pod.
const (
	// HealthPort serves /readyz and /metrics.
	HealthPort = 8095
	// ServerPort is where IMEX daemons reach each other, CommandPort where nvidia-imex-ctl reaches its daemon.
	ServerPort  = 50000
	CommandPort = 50005
)
