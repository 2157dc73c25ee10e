package fabric

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/threads"
	fakeimex "gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/program"
	"gpufabric.io/tests/simcluster/simnode"
)

// imexVersion is the version that the fake daemons tell each other. It only has to be the same everywhere.
const imexVersion = "580.173.02"

const (
	// rack is how many nodes of a GB200 NVL72 share an NVLink domain.
	rack = 18
	// defaultHeartbeat is the fake daemon's own.
	defaultHeartbeat = 500 * time.Millisecond
	// queryTimeout is that of the real daemon's supervisor.
	queryTimeout = 2 * time.Second
	// slowHeartbeat is for clusters of many racks. Daemons still notice a closed connection at once.
	slowHeartbeat = 15 * time.Second
)

// imexDaemons runs fake IMEX daemons as goroutines of one container. They communicate over loopback addresses, each on its
// pod's address.
type imexDaemons struct {
	heartbeat time.Duration
	container simnode.Container
	messages  *Messages
}

// Messages counts what the fake IMEX daemons of a cluster have answered each other. Only those that run as goroutines are counted.
type Messages struct{ own, refused, taken atomic.Int64 }

// Own is how many answers came from daemons of the same domain and clique.
func (m *Messages) Own() int64 { return m.own.Load() }

// Refused is how many answers of other domains' daemons were refused. They get through where a pod has the address of an earlier one.
func (m *Messages) Refused() int64 { return m.refused.Load() }

// Taken is how many answers of other domains' daemons were taken for a peer's: there must be none.
func (m *Messages) Taken() int64 { return m.taken.Load() }

func (m *Messages) heard(own bool, status fakeimex.Connection) {
	switch {
	case own:
		m.own.Add(1)
	case status == fakeimex.Connected:
		m.taken.Add(1)
	default:
		m.refused.Add(1)
	}
}

var _ imex.Runner = imexDaemons{}

// Start implements imex.Runner.
func (r imexDaemons) Start(ctx context.Context, spec imex.Spec) (imex.Daemon, error) {
	config, err := fakeimex.ReadConfig(spec.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("start the fake IMEX daemon: %w", err)
	}
	options, err := r.options()
	if err != nil {
		return nil, fmt.Errorf("start the fake IMEX daemon: %w", err)
	}
	options.HostName = spec.BindAddress
	options.Identity = r.container.Env[computedomain.EnvUID] + "/" + r.container.Env[computedomain.EnvClique]
	options.Heard = func(identity string, status fakeimex.Connection) {
		r.messages.heard(identity == options.Identity, status)
	}
	options.Resolve = fakeimex.HostsFile(spec.HostsFile)
	daemon, err := fakeimex.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("start the fake IMEX daemon: %w", err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	running := &imexDaemon{daemon: daemon, config: config, cancel: cancel, exited: make(chan struct{})}
	go func() { // ends with Stop, or with the daemon
		defer close(running.exited)
		running.err = daemon.Run(life)
	}()
	select {
	case <-daemon.Started():
		return running, nil
	case <-running.exited:
		cancel()
		return nil, fmt.Errorf("start the fake IMEX daemon: %w", running.err)
	case <-ctx.Done():
		running.Stop(time.Second)
		return nil, fmt.Errorf("start the fake IMEX daemon: %w", context.Cause(ctx))
	}
}

// options describe exactly what the daemon's container has of its node.
func (r imexDaemons) options() (fakeimex.Options, error) {
	o := fakeimex.Options{Version: imexVersion, Heartbeat: r.heartbeat}
	container, err := fakeimex.ReadContainer(r.container.Bundle)
	if err != nil {
		return o, err
	}
	o.Surroundings, o.PersistDir = container, container.Mounts[fakeimex.PersistDir]
	program := r.container.Env[computedomain.EnvProgram] // the path on this machine
	if program == "" {
		// As on a real node: there is nothing to start.
		return o, imex.ErrNoPrograms
	}
	// The program lies where its node keeps its driver.
	root := filepath.Join(filepath.Dir(program), "../../..")
	o.StateDir = filepath.Join(root, "state")
	o.Faults = fakeimex.FaultsFile(filepath.Join(o.StateDir, fakeimex.FaultsName))
	o.Needs, err = fakeimex.Needs(root)
	return o, err
}

type imexDaemon struct {
	daemon *fakeimex.Daemon
	config fakeimex.Config
	cancel context.CancelFunc
	exited chan struct{}
	err    error // set before exited is closed
}

func (d *imexDaemon) Reload() error {
	d.daemon.Reload()
	return nil
}

// State asks as nvidia-imex-ctl -q does.
func (d *imexDaemon) State(ctx context.Context) (imex.State, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	status, err := fakeimex.Query(ctx, d.config, fakeimex.OfDaemon)
	return imex.State(status.Local), err
}

// Nodes asks as nvidia-imex-ctl -N -j does.
func (d *imexDaemon) Nodes(ctx context.Context) (map[int]imex.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	status, err := fakeimex.Query(ctx, d.config, fakeimex.OfDomain)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := status.WriteJSON(&text); err != nil {
		return nil, err
	}
	var answer struct {
		Nodes map[int]imex.Node `json:"nodes"`
	}
	if err := json.Unmarshal(text.Bytes(), &answer); err != nil {
		return nil, err
	}
	return answer.Nodes, nil
}

// Threads implements imex.Daemon. The daemons of all nodes are goroutines of one process, so threads do not belong to a daemon.
func (d *imexDaemon) Threads() (threads.Sample, error) { return threads.Sample{}, nil }

func (d *imexDaemon) Exited() <-chan struct{} { return d.exited }

func (d *imexDaemon) Err() error {
	select {
	case <-d.exited:
		return d.err
	default:
		return nil
	}
}

func (d *imexDaemon) Stop(time.Duration) {
	d.cancel()
	<-d.exited
}

// execute runs a program of a node's driver to its end, as if it were a process. The files in its place are empty.
func execute(ctx context.Context, words []string) ([]byte, error) {
	name := filepath.Base(words[0])
	if name == "nvidia-imex" { // its version, which the real one takes from its node
		return []byte("IMEX version is: " + imexVersion + "\n"), nil
	}
	var stdout, stderr bytes.Buffer
	if status := program.Run(ctx, name, words[1:], &stdout, &stderr); status != 0 {
		return stdout.Bytes(), fmt.Errorf("exit status %d: %s", status, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}
