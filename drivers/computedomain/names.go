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
	// DaemonDir is where the domain's directory on the node is mounted.
	DaemonDir = "/imexd"
)

// Ports of a daemon pod.
const (
	// HealthPort serves /readyz and /metrics.
	HealthPort = 8095
	// ServerPort is where IMEX daemons reach each other, CommandPort where nvidia-imex-ctl reaches its daemon.
	ServerPort  = 50000
	CommandPort = 50005
)
