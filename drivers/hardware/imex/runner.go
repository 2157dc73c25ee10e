package imex

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"gpufabric.io/drivers/hardware/threads"
)

// State is a daemon's own state, as `nvidia-imex-ctl -q` prints it.
type State string

// The states a daemon reports.
const (
	Initializing       State = "INITIALIZING"
	StartingAuthServer State = "STARTING_AUTH_SERVER"
	WaitingForPeers    State = "WAITING_FOR_PEERS"
	WaitingForRecovery State = "WAITING_FOR_RECOVERY"
	InitGPU            State = "INIT_GPU"
	Ready              State = "READY"
	ShuttingDown       State = "SHUTTING_DOWN"
	Unavailable        State = "UNAVAILABLE"
)

// Runner starts IMEX daemons. The real one runs nvidia-imex as a child process; a simulation may run them in its own process.
type Runner interface {
	// Start starts a daemon on the files in spec.Dir. ctx bounds only the start; Stop ends the daemon.
	Start(ctx context.Context, spec Spec) (Daemon, error)
}

// Spec describes how to start a daemon. The files are written before Start and may be read again at any time.
type Spec struct {
	// Dir holds the files below. It is the compute domain's directory on this node.
	Dir string
	// ConfigFile is nvidia-imex's configuration. NodesFile is the list of its peers (one name a line, including this node's).
	// HostsFile maps those names to addresses, in the format of /etc/hosts.
	ConfigFile, NodesFile, HostsFile string
	// The daemon's peers reach it at BindAddress and ServerPort; nvidia-imex-ctl uses CommandAddress and CommandPort.
	BindAddress, CommandAddress string
	ServerPort, CommandPort     int
	// Certificates are the certificates of it and its peers; nil: connections are not authenticated.
	Certificates *Certificates
}

// NewSpec returns the Spec of a daemon whose files are in dir. hostsFile is usually /etc/hosts.
func NewSpec(dir, hostsFile, bindAddress string, serverPort, commandPort int) (Spec, error) {
	address, err := netip.ParseAddr(bindAddress)
	if err != nil {
		return Spec{}, fmt.Errorf("the pod's address %q is not an IP address: set POD_IP from status.podIP", bindAddress)
	}
	// The command port is for this machine alone. Where several daemons share a machine, each has a loopback address of its own, and
	// its command port uses it too.
	command := "127.0.0.1"
	if address.IsLoopback() {
		command = bindAddress
	}
	return Spec{
		Dir: dir, ConfigFile: filepath.Join(dir, "imexd.cfg"), NodesFile: filepath.Join(dir, "nodes.cfg"), HostsFile: hostsFile,
		BindAddress: bindAddress, CommandAddress: command, ServerPort: serverPort, CommandPort: commandPort,
	}, nil
}

// Daemon is a running IMEX daemon. Its methods may be called from any goroutine.
type Daemon interface {
	// Reload makes the daemon look up its peers' names again (SIGUSR1).
	Reload() error
	// State queries the daemon for its state. A daemon that cannot be queried is Unavailable, with an error that gives the reason:
	// ErrStarved if the querying program lacked a processor.
	State(ctx context.Context) (State, error)
	// Nodes queries the daemon for the nodes in its list and for their connections, by their place in the list from 0. The state of other
	// nodes' connections comes from these; whether the answer has all of them depends on nvidia-imex. The query may hang where State does
	// not (#1417 of NVIDIA's DRA driver).
	Nodes(ctx context.Context) (map[int]Node, error)
	// Threads is the kernel's accounting of the daemon's threads; empty if the kernel has no thread of it.
	Threads() (threads.Sample, error)
	// Exited is closed when the daemon has ended. Err then reports how; it is nil only after Stop.
	Exited() <-chan struct{}
	Err() error
	// Stop queries the daemon to end, ends it by force after patience, and waits until it is gone.
	Stop(patience time.Duration)
}
