package imex

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"
)

// State is a daemon's own view of itself, in the words of `nvidia-imex-ctl -q`.
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
	// Start starts a daemon on what lies in spec.Dir. ctx bounds only the start; Stop ends the daemon.
	Start(ctx context.Context, spec Spec) (Daemon, error)
}

// Spec is what a daemon is started with. The files are written before Start and may be read again at any time.
type Spec struct {
	// Dir holds the files below; it is the directory that the compute domain has on this node.
	Dir string
	// ConfigFile is nvidia-imex's configuration, NodesFile the list of its peers (one name a line, this node's among them), and
	// HostsFile what gives those names their addresses, in the format of /etc/hosts.
	ConfigFile, NodesFile, HostsFile string
	// BindAddress and ServerPort are where the daemon's peers reach it, CommandAddress and CommandPort where nvidia-imex-ctl does.
	BindAddress, CommandAddress string
	ServerPort, CommandPort     int
}

// NewSpec lays a daemon's files out in dir. hostsFile is usually /etc/hosts.
func NewSpec(dir, hostsFile, bindAddress string, serverPort, commandPort int) (Spec, error) {
	address, err := netip.ParseAddr(bindAddress)
	if err != nil {
		return Spec{}, fmt.Errorf("the pod's address %q is not an IP address: set POD_IP from status.podIP", bindAddress)
	}
	// Commands are for this machine alone. Where daemons share a machine, each on a loopback address of its own, so do they.
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
	// State asks the daemon for its state. A daemon that cannot be asked is Unavailable, with an error that says why.
	State(ctx context.Context) (State, error)
	// Exited is closed when the daemon ended; Err then says how, nil only after Stop.
	Exited() <-chan struct{}
	Err() error
	// Stop asks the daemon to end, ends it by force after patience, and waits until it is gone.
	Stop(patience time.Duration)
}
