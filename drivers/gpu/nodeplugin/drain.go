package nodeplugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/ledger"
)

const (
	// controlSocket is where the role takes orders, in its state directory, which root alone can enter.
	controlSocket = "control.sock"
	// drainedFile stands in the state directory while the node's GPUs are drained: a role that is started again leaves them alone too.
	drainedFile = "drained.json"
	// DrainTaint keeps new claims off the GPUs of a node that is being drained.
	DrainTaint = "gpufabric.io/drained"
	// drainTold is how often a drain that waits says for what.
	drainTold = 5 * time.Second
)

// errDrained ends a run of the plugin whose GPUs are drained.
var errDrained = errors.New("the node's GPUs are drained")

// drained is what stands in drainedFile.
type drained struct {
	Since time.Time `json:"since"`
}

// drains knows whether the node's GPUs are drained, or are to be. The zero value is that they are not.
type drains struct {
	file string

	mu sync.Mutex
	// wanted: somebody wants them drained. idle: the role has let go of NVML.
	wanted, idle bool
	// changed is closed at every change, and another takes its place.
	changed chan struct{}
}

// newDrains reads what an earlier run left.
func newDrains(stateDir string) *drains {
	d := &drains{file: filepath.Join(stateDir, drainedFile), changed: make(chan struct{})}
	_, err := os.Stat(d.file)
	d.wanted = err == nil
	return d
}

// set changes the state.
func (d *drains) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	close(d.changed)
	d.changed = make(chan struct{})
}

// await waits until the state is as wished.
func (d *drains) await(ctx context.Context, so func() bool) error {
	for {
		d.mu.Lock()
		ok, changed := so(), d.changed
		d.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *drains) isWanted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wanted
}

// hold keeps the role from opening NVML while the GPUs are drained.
func (s *starter) hold(ctx context.Context, p *plugin) error {
	d := s.drains
	if !d.isWanted() {
		return nil
	}
	message := "the node's GPUs are drained: nothing of them is handed out, and NVML is not open, until gpufabric undrain"
	klog.FromContext(ctx).Info(message)
	p.note("GPUsDrained", message)
	d.set(func() { d.idle = true })
	err := d.await(ctx, func() bool { return !d.wanted })
	d.set(func() { d.idle = false })
	return err
}

// control takes orders from the role's socket until ctx ends.
func (s *starter) control(ctx context.Context) error {
	path := filepath.Join(s.options.StateDir, controlSocket)
	if err := os.MkdirAll(s.options.StateDir, 0o750); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // one that a killed run left
		return fmt.Errorf("take an old control socket away: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen for gpufabric drain: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("keep the control socket to root: %w", err), listener.Close())
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen for gpufabric drain: %w", err)
		}
		wg.Go(func() { s.obey(ctx, conn) })
	}
}

// obey carries one order out and answers in lines, the last of which begins with "done" or "failed: ". An order whose giver is gone is given up.
func (s *starter) obey(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	lines := bufio.NewScanner(conn)
	if !lines.Scan() {
		return
	}
	order := lines.Text()
	go func() { // Ends with the connection.
		lines.Scan()
		cancel()
	}()
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(conn, strings.ReplaceAll(format, "\n", " ")+"\n", args...)
	}
	var err error
	switch order {
	case "drain":
		err = s.drain(ctx, say)
	case "undrain":
		err = s.undrain()
	default:
		err = fmt.Errorf("order %q is not known: drain and undrain are", order)
	}
	if err != nil {
		say("failed: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	say("done")
}

// drain keeps new claims off the GPUs, waits until those that stand have ended, and has the role let go of NVML.
func (s *starter) drain(ctx context.Context, say func(format string, args ...any)) error {
	d := s.drains
	p := s.current.Load()
	if dra := p.served.Load(); dra != nil && !d.isWanted() {
		p.draining.Store(true)
		p.changed()
		say("taint %s is published: no new claim gets a GPU of this node", DrainTaint)
		if err := p.free(ctx, say); err != nil {
			p.draining.Store(false)
			p.changed()
			return fmt.Errorf("%w: the GPUs are offered again", err)
		}
		for _, g := range p.kind.Hardware().Node.GPUs {
			if running := partition.Processes(g); len(running) > 0 {
				say("on %s still runs, which no claim gave it: %s", g.UUID, strings.Join(running, ", "))
			}
		}
	}
	text, err := json.Marshal(drained{Since: time.Now().UTC()})
	if err != nil {
		return err
	}
	if err := (atomicfile.Writer{}).Write(d.file, text, 0o640); err != nil {
		return fmt.Errorf("remember that the GPUs are drained: %w", err)
	}
	d.set(func() { d.wanted = true })
	if interrupt := s.interrupt.Load(); interrupt != nil {
		(*interrupt)(errDrained)
	}
	if err := d.await(ctx, func() bool { return d.idle }); err != nil {
		return fmt.Errorf("waiting for NVML to be let go of: %w", err)
	}
	say("this driver has let go of NVML, and leaves the GPUs alone until gpufabric undrain, also when it is started again")
	return nil
}

// undrain hands the GPUs out again.
func (s *starter) undrain() error {
	if err := os.Remove(s.drains.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget that the GPUs are drained: %w", err)
	}
	s.drains.set(func() { s.drains.wanted = false })
	return nil
}

// free waits until no claim and no device plugin holds any part of a GPU, and keeps all of them from then on.
func (p *plugin) free(ctx context.Context, say func(format string, args ...any)) (err error) {
	owner := ledger.Owner{ID: "drain", Name: "gpufabric drain"}
	defer func() {
		if err != nil {
			p.dra.Ledger().Release(owner.ID)
		}
	}()
	last := ""
	for patience := time.Duration(0); ; patience = drainTold { // the first time says at once for what it waits
		turn, cancel := context.WithTimeout(ctx, patience)
		err := p.dra.Ledger().Acquire(turn, owner, holdsOf(p.kind.Hardware().Node.GPUs)...)
		cancel()
		var held *ledger.ConflictError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("given up while %s", strings.TrimSpace(err.Error()))
		case !errors.As(err, &held):
			return err
		}
		if message := p.holders(); message != last {
			say("waiting: %s; %s", err.Error(), message)
			last = message
		}
	}
}

func holdsOf(gpus []*inventory.GPU) []ledger.Hold {
	var holds []ledger.Hold
	for _, g := range gpus {
		holds = append(holds, claims.HoldsOf(&devices.Device{Form: devices.Whole, GPU: g})...)
	}
	return holds
}

// holders says who has devices of the node.
func (p *plugin) holders() string {
	var out []string
	for _, record := range p.dra.Records() {
		var held []string
		for _, d := range record.Devices {
			held = append(held, d.Device)
		}
		out = append(out, fmt.Sprintf("claim %s/%s has %s", record.Namespace, record.Name, strings.Join(held, ", ")))
	}
	for uuid, plugin := range p.given.snapshot() {
		out = append(out, fmt.Sprintf("the device plugin %s has %s: take the GPU from it first", plugin, uuid))
	}
	return "delete their pods, or kubectl drain the node: " + strings.Join(sortedWords(out), "; ")
}

// drainTaints adds the taint of a node that is being drained to all devices.
func (p *plugin) drainTaints(into map[string][]resourceapi.DeviceTaint, all []*devices.Device) map[string][]resourceapi.DeviceTaint {
	if !p.draining.Load() {
		return into
	}
	for _, d := range all {
		into[d.Name()] = append(into[d.Name()], resourceapi.DeviceTaint{Key: DrainTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return into
}
