package imex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"gpufabric.io/drivers/hardware/threads"
)

const (
	// queryTimeout bounds one call of nvidia-imex-ctl, since the call may hang.
	queryTimeout = 2 * time.Second
	// starvedTimeout is the longest time that a call may take on a node where earlier ones were starved.
	starvedTimeout = 8 * time.Second
)

// ErrStarved means that the querying program got no answer because the node gave it no processor, or no disk, in time. It is no evidence
// about the daemon.
var ErrStarved = errors.New("nvidia-imex-ctl did not get processor time or its files from the node in time")

// Execute runs a program to its end and returns its standard output. The error has its standard error.
type Execute func(ctx context.Context, words []string) ([]byte, error)

// Run is the Execute of a real machine. Its error is ErrStarved where the program had no chance to end before ctx did.
func Run(ctx context.Context, words []string) ([]byte, error) {
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	// A process that the program left behind must not delay this.
	command.WaitDelay = time.Second
	began, lacked := time.Now(), threads.Nothing
	command.Cancel = func() error {
		if now, err := (threads.FS{}).Read(command.Process.Pid); err == nil {
			lacked = threads.LackedSince(began, now)
		}
		return command.Process.Kill()
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil && lacked != threads.Nothing {
		return out, fmt.Errorf("%w: it waited for %s", ErrStarved, lacked)
	}
	if err != nil {
		return out, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// query runs one nvidia-imex-ctl that must answer within a limit. option names it in errors.
func query(ctx context.Context, run Execute, words []string, option string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := run(ctx, words)
	switch {
	case errors.Is(err, ErrStarved):
		return nil, fmt.Errorf("nvidia-imex-ctl %s did not answer within %s: %w", option, limit, err)
	case ctx.Err() != nil && err != nil:
		return nil, fmt.Errorf("nvidia-imex-ctl %s did not answer within %s", option, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("nvidia-imex-ctl %s: %w", option, err)
	}
	return out, nil
}

// queryState runs a query whose answer is a state.
func queryState(ctx context.Context, run Execute, words []string, limit time.Duration) (State, error) {
	out, err := query(ctx, run, words, "-q", limit)
	if err != nil {
		return Unavailable, err
	}
	// The answer must be exactly one word; anything else is no state.
	state := State(strings.TrimSuffix(string(out), "\n"))
	switch state {
	case Initializing, StartingAuthServer, WaitingForPeers, WaitingForRecovery, InitGPU, Ready, ShuttingDown, Unavailable:
		return state, nil
	default:
		return Unavailable, fmt.Errorf("nvidia-imex-ctl -q answered %.100q, which is not a state", out)
	}
}

// Control queries a daemon that another program started, by its control socket (IMEX_CMD_UNIX_DOMAIN_PATH of its configuration).
type Control struct {
	Programs Programs
	// Run runs the programs.
	Run Execute
	// Socket is the path of the control socket.
	Socket string
}

// State queries the daemon for its state. A daemon that cannot be queried is Unavailable, with an error that gives the reason.
func (c Control) State(ctx context.Context) (State, error) {
	return queryState(ctx, c.Run, c.Programs.command(c.Programs.Control, "-q", "--u="+c.Socket), queryTimeout)
}

// Nodes queries the daemon for the nodes in its list, as `nvidia-imex-ctl -N -j` prints them. The question may hang where State does not
// (#1417 of NVIDIA's DRA driver).
func (c Control) Nodes(ctx context.Context) ([]Node, error) {
	nodes, err := queryNodes(ctx, c.Run, c.Programs.command(c.Programs.Control, "-N", "-j", "--u="+c.Socket))
	return slices.Collect(maps.Values(nodes)), err
}

// queryNodes runs a query whose answer is the list of nodes, by their place in it from 0.
func queryNodes(ctx context.Context, run Execute, words []string) (map[int]Node, error) {
	out, err := query(ctx, run, words, "-N -j", queryTimeout)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Nodes map[int]Node `json:"nodes"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("nvidia-imex-ctl -N -j answered %.100q, which is not the list of nodes: %w", out, err)
	}
	return answer.Nodes, nil
}

// Version queries nvidia-imex for its version. The program that runs may be of another, if it was replaced since it started.
func (c Control) Version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	out, err := c.Run(ctx, c.Programs.command(c.Programs.Daemon, "--version"))
	if err != nil {
		return "", fmt.Errorf("nvidia-imex --version: %w", err)
	}
	_, version, found := strings.Cut(string(out), "IMEX version is:")
	if version = strings.TrimSpace(version); !found || version == "" || strings.ContainsAny(version, " \n") {
		return "", fmt.Errorf("nvidia-imex --version answered %.100q, without a version", out)
	}
	return version, nil
}

// Node is a node in a daemon's list.
type Node struct {
	// Host is the line of the list, HostName the host name that the node reports, and Version its daemon's version; both are empty
	// until it was reached.
	Host     string `json:"host"`
	HostName string `json:"hostName"`
	Version  string `json:"version"`
	// Connections are this node's, by the place of the other in the list.
	Connections map[int]Connection `json:"connections"`
}

// Connection is one node's connection to another.
type Connection struct {
	Host   string           `json:"host"`
	Status ConnectionStatus `json:"status"`
}

// ConnectionStatus is the state of a connection, in the words of `nvidia-imex-ctl -N -j`.
type ConnectionStatus string

// States of a connection. There are more, for one that was lost or never made.
const (
	// Connected: the connection works.
	Connected ConnectionStatus = "CONNECTED"
	// Unknown: the queried daemon could not query the node whose connection it is.
	Unknown ConnectionStatus = "INVALID"

	// Causes that keep two daemons from ever being connected.

	// OtherVersion: the two are of versions that do not work together.
	OtherVersion ConnectionStatus = "VERSION_MISMATCH"
	// OtherNodes: the two lists of nodes differ.
	OtherNodes ConnectionStatus = "NODE_MAP_MISMATCH"
)
