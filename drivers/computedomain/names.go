// Package computedomain holds the names that the controller, the node plugin and the IMEX daemon of compute domains agree on.
//
// How a domain forms: a user creates a ComputeDomain; the controller makes the ResourceClaimTemplate that it names, and a DaemonSet
// for nodes that carry the domain's label. A pod with a claim from that template lands on a node; the node plugin there labels the
// node, which brings the domain's IMEX daemon, and lets the pod start once that daemon is ready. The controller sees the daemon
// pods, numbers the nodes of each clique and writes them into the domain's status, where the daemons read their peers. Watches, not
// polls, carry all of this, and each node costs two writes: its label, and its part in a status patch.
//
// In clique mode the daemons are those of a ComputeDomain that the controller makes for each clique, and live as long as the node.
// A user's domain is a channel of each clique that its pods run in. A node plugin labels its node with the domain, the controller
// enters the domain into the clique's table of channels, and the plugin hands out the number that it reads there: the table is in
// the controller's namespace, where no tenant can write. When the last claim of a domain on a node is unprepared the label goes.
// The entry goes when the domain is being deleted or gone and no node has its label. So a number is reserved from before its first
// use until after its last.
//
// In host mode the same holds, but the controller runs no daemons: each node's own nvidia-imex serves. Its node plugin queries it for
// READY, labels the node with the answer, and gives a claim its channel when the service is READY and lists the nodes of the domain.
package computedomain

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// Names under which devices are published and claimed.
const (
	// Driver is the DRA driver.
	Driver = "compute-domain.nvidia.com"
	// ChannelClass and DaemonClass are the DeviceClasses of the driver's devices.
	ChannelClass = "compute-domain-default-channel.nvidia.com"
	DaemonClass  = "compute-domain-daemon.nvidia.com"
	// ChannelDevice and DaemonDevice are the devices of every node.
	ChannelDevice = "channel-0"
	DaemonDevice  = "daemon-0"
	// AttributeType and AttributeID distinguish devices; the type of a device is TypeChannel or TypeDaemon.
	AttributeType resourceapi.QualifiedName = "type"
	AttributeID   resourceapi.QualifiedName = "id"
	TypeChannel                             = "channel"
	TypeDaemon                              = "daemon"
	// AttributeClique is the node's clique, on nodes that have one.
	AttributeClique resourceapi.QualifiedName = "cliqueID"
	// AttributeChannels is the number of IMEX channels behind a channel that several domains share.
	AttributeChannels resourceapi.QualifiedName = "channels"
	// AttributeAllHeld is true, of a channel that several domains share, where domains have all channels behind it. HeldBy names
	// them then.
	AttributeAllHeld resourceapi.QualifiedName = "allHeld"
	// TaintFabric keeps pods away from the channel of a node whose fabric is not usable; its value reports why.
	TaintFabric = "compute-domain.nvidia.com/fabric"
)

// PoolName is the name of a node's pool.
func PoolName(node string) string { return node + "-compute-domain" }

// Names on the controller's objects.
const (
	// Finalizer holds a ComputeDomain until everything that was made for it is gone.
	Finalizer = "resource.nvidia.com/computeDomain"
	// AnnotationName and AnnotationNamespace on a claim report which ComputeDomain its config's domainID is, so that it need not be
	// searched for. On a tenant's claim they are a hint that is checked; on a daemon's claim, which only the controller makes, they
	// are relied on.
	AnnotationName      = "resource.nvidia.com/computeDomainName"
	AnnotationNamespace = "resource.nvidia.com/computeDomainNamespace"
	// DaemonContainer is the container of the daemon pods.
	DaemonContainer = "imex-daemon"
)

// Labels of nodes where the IMEX daemons of cliques serve all domains.
const (
	// LabelMemberPrefix and a ComputeDomain's UID are the label of a node on which a claim of that domain is prepared. It requests a
	// channel of the node's clique, and its removal returns the channel.
	LabelMemberPrefix = "computedomain.gpufabric.io/"
	// LabelChannels is how many IMEX channels the node's driver made.
	LabelChannels = "gpufabric.io/imex-channels"
	// LabelHostIMEX is, where nodes run nvidia-imex themselves, HostIMEXReady or why this node's cannot serve domains (package hostimex).
	LabelHostIMEX = "gpufabric.io/host-imex"
	// HostIMEXReady is the label's value on a node whose nvidia-imex is READY.
	HostIMEXReady = "Ready"
)

// MemberLabel is the label of a node that is part of a domain which has a channel of the node's clique.
func MemberLabel(domain types.UID) string { return LabelMemberPrefix + string(domain) }

// MemberOf returns the domains that labels name in this way, sorted.
func MemberOf(labels map[string]string) []types.UID {
	var domains []types.UID
	for label := range labels {
		if uid, found := strings.CutPrefix(label, LabelMemberPrefix); found {
			domains = append(domains, types.UID(uid))
		}
	}
	slices.Sort(domains)
	return domains
}

// CertificateName is the name in the certificate of a domain's IMEX daemons.
func CertificateName(domain types.UID) string { return string(domain) + ".imex.gpufabric.io" }

// CliqueName is the name of a whole clique's ComputeDomain in the controller's namespace: the domain of the IMEX daemons that serve all
// others there, with the table of their channels.
func CliqueName(clique string) string {
	name := "clique-" + strings.ToLower(clique)
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(clique))
	return "clique-" + hex.EncodeToString(sum[:16])
}

// CliqueOf is the clique of a clique's ComputeDomain; empty for a user's. namespace is the controller's.
func CliqueOf(domain *v1beta1.ComputeDomain, namespace string) string {
	clique := domain.Labels[v1beta1.LabelClique]
	if clique == "" || domain.Namespace != namespace || domain.Name != CliqueName(clique) {
		return ""
	}
	return clique
}

// ChannelOf is the entry of a domain in a clique's table of channels, or nil.
func ChannelOf(clique *v1beta1.ComputeDomain, domain types.UID) *v1beta1.ComputeDomainChannel {
	for i := range clique.Status.Channels {
		if clique.Status.Channels[i].DomainID == string(domain) {
			return &clique.Status.Channels[i]
		}
	}
	return nil
}

// HeldBy is the attribute, true, of a channel without a free number that a domain holds one of. The name of an attribute has 32
// characters at most, which a UID is too long for.
func HeldBy(domain types.UID) resourceapi.QualifiedName {
	sum := sha256.Sum256([]byte(domain))
	return resourceapi.QualifiedName("heldBy_" + hex.EncodeToString(sum[:8]))
}

// FreeFor is a CEL expression by which a claim of a domain selects channels: those behind which a number is free, or is the domain's.
func FreeFor(domain types.UID) string {
	return fmt.Sprintf("!(%[2]q in device.attributes[%[1]q]) || %[3]q in device.attributes[%[1]q]", Driver, AttributeAllHeld, HeldBy(domain))
}

// Environment variables of a container with a channel, in a node's NVLink fabric. EnvUID, EnvName and EnvNamespace come too.
const (
	// EnvNodes is the domain's spec.numNodes.
	EnvNodes = "COMPUTE_DOMAIN_NODES"
	// EnvCliqueOf is the NVLink clique of the node, as its label nvidia.com/gpu.clique has it.
	EnvCliqueOf = "COMPUTE_DOMAIN_CLIQUE_ID"
	// EnvChannel is the number of the IMEX channel; of several the first.
	EnvChannel = "COMPUTE_DOMAIN_CHANNEL"
	// EnvIndex is the node's index among the IMEX daemons of its clique, from 0: index in status.nodes of the ComputeDomain whose daemons
	// serve it. It is not set where the nodes' own nvidia-imex serves.
	EnvIndex = "COMPUTE_DOMAIN_NODE_INDEX"
)

// Paths and variables of a daemon's container.
const (
	EnvClique    = "CLIQUE_ID"
	EnvUID       = "COMPUTE_DOMAIN_UUID"
	EnvName      = "COMPUTE_DOMAIN_NAME"
	EnvNamespace = "COMPUTE_DOMAIN_NAMESPACE"
	// EnvProgram and EnvControl are nvidia-imex and nvidia-imex-ctl, EnvLoader the dynamic loader that starts them: the node's own
	// loader, with the libraries beside it. It is not set for programs that need none.
	EnvProgram = "IMEX_PROGRAM"
	EnvControl = "IMEX_CONTROL"
	EnvLoader  = "IMEX_LOADER"
	// DaemonDir is where the domain's directory on the node is mounted.
	DaemonDir = "/imexd"
	// PersistDir is where nvidia-imex keeps persist.dat, its state for recovery after a crash. It lies in the
	// domain's directory on the node, since it must outlive the container.
	PersistDir = "/var/run/nvidia-imex"
	// CertificatesDir is where the certificate of a domain's daemons is mounted, where they have one.
	CertificatesDir = "/etc/imex-certificates"
	// DriverDir has the files of the node's driver in the container: bin and lib.
	DriverDir = "/driver"
)

// ConnectionsPath is the path on HealthPort where a daemon pod serves the connections of its IMEX daemon (imexd.Connections). It is not
// secret: node indices and states.
const ConnectionsPath = "/connections"

// Ports of a daemon pod.
const (
	// HealthPort serves /readyz, /connections and /metrics.
	HealthPort = 8095
	// MetricsPort serves /metrics instead of HealthPort where metrics.authentication is on.
	MetricsPort = 8096
	// ServerPort is where IMEX daemons reach each other, CommandPort where nvidia-imex-ctl reaches its daemon.
	ServerPort  = 50000
	CommandPort = 50005
)
