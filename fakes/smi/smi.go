// Package smi is a small nvidia-smi: it supports the queries that scripts and people use most. It reads the node's state itself,
// since go-nvml needs cgo and the tool must run in any container.
package smi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// Command is one run of nvidia-smi.
type Command struct {
	// Root is the fake node's.
	Root   string
	Stdout io.Writer
	// Now is the time that tables and logs are stamped with.
	Now time.Time
	// Getenv, where it is set, makes nvidia-smi behave as under a limiter: see share.
	Getenv func(string) string
	// Opens reports whether this process can open a GPU, by the minor of its device node; nil: it can open all.
	Opens func(minor uint32) bool
	// Done ends dmon and pmon when it is closed; nil: they end by their count alone.
	Done <-chan struct{}

	file *state.File
	body *state.Body
}

// options are the arguments, taken apart.
type options struct {
	list, query, xml     bool
	queryGPU             []string
	format               []string
	gpus                 []string
	persistence          string
	computeMode          string
	migMode              string
	powerLimit           string
	reset                bool
	version, help        bool
	helpQueryGPU         bool
	queryComputeApps     []string
	selectedProcessQuery bool
}

// Run runs nvidia-smi with its arguments.
func (c *Command) Run(args []string) error {
	f, err := state.Open(c.Root)
	if err != nil {
		return fmt.Errorf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver: %w", err)
	}
	defer func() { _ = f.Close() }() // only a mapping is given up
	c.file = f
	if err := c.read(); err != nil {
		return err
	}
	if len(args) > 0 {
		commands := map[string]func([]string) error{"topo": c.topo, "mig": c.mig, "compute-policy": c.computePolicy, "nvlink": c.nvlink,
			"dmon": c.dmon, "pmon": c.pmon, "c2c": c.c2c, "conf-compute": c.confCompute, "vgpu": c.vgpu, "power-smoothing": c.powerSmoothing}
		if run := commands[args[0]]; run != nil {
			return run(args[1:])
		}
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	gpus, err := c.selected(o.gpus)
	if err != nil {
		return err
	}
	if gpus, err = c.share(gpus); err != nil {
		return err
	}
	switch {
	case o.help:
		return c.print(usage)
	case o.helpQueryGPU:
		return c.helpQueryGPU()
	case o.version:
		return c.printVersion()
	case o.reset:
		return c.reset(gpus)
	case o.persistence != "" || o.computeMode != "" || o.migMode != "" || o.powerLimit != "":
		return c.configure(gpus, o)
	case o.list:
		return c.list(gpus)
	case o.queryGPU != nil:
		return c.csv(gpus, o)
	case o.selectedProcessQuery:
		return c.processesCSV(gpus, o)
	case o.query:
		return c.query(gpus, o.xml)
	}
	return c.table(gpus)
}

const usage = `nvidia-smi of a fake node. It knows:
  nvidia-smi                                   the table
  nvidia-smi -L                                one line per GPU and MIG device
  nvidia-smi -q [-x]                           everything, as text or XML
  nvidia-smi --query-gpu=F,... --format=csv[,noheader][,nounits]
  nvidia-smi --help-query-gpu                  the names of the fields F
  nvidia-smi --query-compute-apps=F,... --format=csv[,noheader][,nounits]
  nvidia-smi -pm 0|1, -c 0|2|3, -mig 0|1, -pl WATTS
  nvidia-smi --gpu-reset                       of GPUs that nobody uses or has open
  nvidia-smi topo -m | -p2p r|w|n|a|p
  nvidia-smi nvlink -s | -e | -c   [-i GPU]
  nvidia-smi dmon | pmon   [-c COUNT] [-d SECONDS] [-i GPU]
  nvidia-smi mig -lgip | -lgipp | -lgi | -lcip | -lci | -cgi P,... [-C] | -cci [P] | -dgi | -dci   [-gi G] [-ci C]
  nvidia-smi c2c [-s], conf-compute -f | -grs, vgpu [-q | -s | -c], power-smoothing [-h]
  nvidia-smi compute-policy --list | --set-timeslice 0|1|2|3
  all with -i INDEX|UUID|PCI for some GPUs only
`

func (c *Command) print(format string, args ...any) error {
	_, err := fmt.Fprintf(c.Stdout, format, args...)
	return err
}

// parse takes both -flag value and --flag=value.
func parse(args []string) (options, error) {
	var o options
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		next := func() (string, error) {
			if inline {
				return value, nil
			}
			if i++; i >= len(args) {
				return "", fmt.Errorf("option %s needs a value", name)
			}
			return args[i], nil
		}
		var err error
		var v string
		switch name {
		case "-L", "--list-gpus":
			o.list = true
		case "-q", "--query":
			o.query = true
		case "-x", "--xml-format":
			o.xml = true
		case "-h", "--help":
			o.help = true
		case "--help-query-gpu":
			o.helpQueryGPU = true
		case "--version":
			o.version = true
		case "--query-gpu":
			v, err = next()
			o.queryGPU = split(v)
		case "--query-compute-apps":
			v, err = next()
			o.queryComputeApps, o.selectedProcessQuery = split(v), true
		case "--format":
			v, err = next()
			o.format = split(v)
		case "-i", "--id":
			v, err = next()
			o.gpus = split(v)
		case "-r", "--gpu-reset":
			o.reset = true
		case "-pm", "--persistence-mode":
			o.persistence, err = next()
		case "-c", "--compute-mode":
			o.computeMode, err = next()
		case "-mig", "--multi-instance-gpu":
			o.migMode, err = next()
		case "-pl", "--power-limit":
			o.powerLimit, err = next()
		default:
			return o, fmt.Errorf("option %q is unknown; see nvidia-smi -h", args[i])
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

func split(s string) []string {
	parts := []string{}
	for p := range strings.SplitSeq(s, ",") {
		parts = append(parts, strings.TrimSpace(p))
	}
	return parts
}

// read takes a new view of the state; a GPU looked at before keeps its old one.
func (c *Command) read() (err error) {
	c.body, err = c.file.Read()
	if err != nil {
		return err
	}
	for _, g := range c.body.GPUs {
		c.body.Sweep(g) // in this view only
	}
	return nil
}

// gpu is one GPU of the view.
type gpu struct {
	*state.GPU
	model *state.Model
	// index counts the GPUs that can be opened, place all of the node's.
	index, place int
	// limit is the container's share of the memory in bytes; 0: all of it.
	limit uint64
}

func (g gpu) uuid() string { return "GPU-" + profile.FormatUUID(g.Core.UUID) }
func (g gpu) name() string { return state.String(g.model.Name[:]) }
func (g gpu) busID() string {
	return fmt.Sprintf("%08X:%02X:%02X.0", g.Core.Domain, g.Core.Bus, g.Core.Device)
}

// used is the used memory in bytes, of processes and without a known owner.
func (g gpu) used() uint64 {
	total := g.Core.MemoryUsed
	if g.limit > 0 {
		total = 0 // a limiter counts its own container's
	}
	for _, p := range g.processes() {
		total += p.Memory
	}
	return min(total, g.model.MemoryTotal-g.model.MemoryReserved)
}

func (g gpu) processes() []state.Process {
	var all []state.Process
	for _, p := range g.Processes {
		if p.PID != 0 {
			all = append(all, p)
		}
	}
	return all
}

// utilisation is the scripted one, or 100 while a kernel runs.
func (g gpu) utilisation(now time.Time) uint32 {
	for _, p := range g.processes() {
		if p.BusyUntil > uint64(now.UnixMicro()) {
			return 100
		}
	}
	return g.Core.UtilizationGPU
}

// selected gives the GPUs with those indexes, UUIDs, serials or PCI addresses; none means all that are not lost.
func (c *Command) selected(ids []string) ([]gpu, error) {
	var all []gpu
	index := -1
	for i, g := range c.body.GPUs {
		if c.Opens != nil && !c.Opens(g.Core.Minor) {
			continue
		}
		index++
		x := gpu{GPU: g, model: &c.body.Node.Model, index: index, place: i}
		wanted := len(ids) == 0 && g.Core.Lost == 0 || slices.ContainsFunc(ids, x.is)
		if wanted && g.Core.Lost != 0 {
			return nil, fmt.Errorf("unable to open GPU %s: GPU is lost", x.busID())
		}
		if wanted {
			all = append(all, x)
		}
	}
	if len(ids) > 0 && len(all) < len(ids) {
		return nil, fmt.Errorf("no devices were found for -i %s; the node has %d GPUs", strings.Join(ids, ","), len(c.body.GPUs))
	}
	return all, nil
}

func (g gpu) is(id string) bool {
	short := strings.TrimPrefix(g.busID(), "0000")
	return id == strconv.Itoa(g.index) || id == g.uuid() || id == state.String(g.Core.Serial[:]) ||
		strings.EqualFold(id, g.busID()) || strings.EqualFold(id, short)
}

func (c *Command) printVersion() error {
	driver := c.driver()
	return c.print("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %s\n", driver,
		state.String(c.body.Node.NVMLVersion[:]), driver, c.cuda())
}

func (c *Command) driver() string { return state.String(c.body.Node.DriverVersion[:]) }

func (c *Command) cuda() string {
	v := c.body.Node.CUDAVersion
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

func (c *Command) list(gpus []gpu) error {
	for _, g := range gpus {
		if err := c.print("GPU %d: %s (UUID: %s)\n", g.index, g.name(), g.uuid()); err != nil {
			return err
		}
		for i, m := range g.migDevices() {
			if err := c.print("  MIG %-15s Device %2d: (UUID: MIG-%s)\n", m.computeName(), i, profile.FormatUUID(m.ci.UUID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// migDevice is a compute instance with its GPU instance and GPU.
type migDevice struct {
	gi      *state.GPUInstance
	ci      *state.ComputeInstance
	profile *state.MIGProfile
	compute *state.CIProfile
}

// computeName is e.g. 1c.3g.20gb, or the GPU instance's own name for all of its slices.
func (m migDevice) computeName() string { return computeName(m.profile, m.compute) }

func computeName(p *state.MIGProfile, c *state.CIProfile) string {
	if c.Slices < p.Slices {
		return fmt.Sprintf("%dc.%s", c.Slices, state.String(p.Name[:]))
	}
	return state.String(p.Name[:])
}

// migDevices lists a GPU's MIG devices in the order of their instances' IDs.
func (g gpu) migDevices() []migDevice {
	var all []migDevice
	for id := range uint32(mig.GPUInstanceIDs) {
		gi := mig.FindGPUInstance(g.GPU, id)
		if gi == nil || gi.Profile >= state.MaxMIGProfiles {
			continue
		}
		p := &g.model.MIGProfiles[gi.Profile]
		for c := range uint32(mig.ComputeInstanceIDs) {
			if ci := mig.FindComputeInstance(gi, c); ci != nil && ci.Profile < state.MaxCIProfiles {
				all = append(all, migDevice{gi, ci, p, &p.CIProfiles[ci.Profile]})
			}
		}
	}
	return all
}

// change makes a change of one GPU, as the only writer on the node, and reads the state again.
func (c *Command) change(g gpu, fn func(*state.Model, *state.GPU) error) error {
	if !c.file.Administered() {
		return fmt.Errorf("insufficient permissions: root and the owner of the node's state may change this: %w", os.ErrPermission)
	}
	err := c.file.Update(func(b *state.Body) error {
		b.Sweep(b.GPUs[g.place])
		return fn(&b.Node.Model, b.GPUs[g.index])
	})
	return errors.Join(err, c.read())
}

func (c *Command) configure(gpus []gpu, o options) error {
	for _, g := range gpus {
		if err := c.configureOne(g, o); err != nil {
			return err
		}
	}
	return c.print("All done.\n")
}

func (c *Command) configureOne(g gpu, o options) error {
	set := func(what string, fn func(*state.Model, *state.GPU) error) error {
		if err := c.change(g, fn); err != nil {
			return fmt.Errorf("unable to set %s for GPU %s: %w", what, g.busID(), err)
		}
		return c.print("Set %s for GPU %s.\n", what, g.busID())
	}
	var errs []error
	if o.persistence != "" {
		v, err := choice("-pm", o.persistence, "0", "1")
		if err != nil {
			return err
		}
		errs = append(errs, set("persistence mode to "+o.persistence, func(_ *state.Model, s *state.GPU) error {
			s.Core.Persistence = uint32(v)
			return nil
		}))
	}
	if o.computeMode != "" {
		v, err := choice("-c", o.computeMode, "0", "1", "2", "3", "DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")
		if err != nil {
			return err
		}
		errs = append(errs, set("compute mode to "+o.computeMode, func(_ *state.Model, s *state.GPU) error {
			if v%4 == 1 {
				return errors.New("exclusive thread is no longer supported")
			}
			s.Core.ComputeMode = uint32(v % 4)
			return nil
		}))
	}
	if o.powerLimit != "" {
		watts, err := strconv.ParseFloat(o.powerLimit, 64)
		if err != nil {
			return fmt.Errorf("-pl %s: want watts", o.powerLimit)
		}
		errs = append(errs, set("power limit to "+o.powerLimit+" W", func(m *state.Model, s *state.GPU) error {
			if limit := watts * 1000; limit >= float64(m.PowerMin) && limit <= float64(m.PowerMax) { // before 32 bits cut it
				s.Core.PowerLimit = uint32(limit)
				return nil
			}
			return fmt.Errorf("it must be from %d W to %d W", m.PowerMin/1000, m.PowerMax/1000)
		}))
	}
	if o.migMode != "" {
		errs = append(errs, c.setMIG(g, o.migMode))
	}
	return errors.Join(errs...)
}

func (c *Command) setMIG(g gpu, value string) error {
	v, err := choice("-mig", value, "0", "1")
	if err != nil {
		return err
	}
	var activation error
	err = c.change(g, func(m *state.Model, s *state.GPU) (err error) {
		err, activation = mig.SetMode(m, s, v == 1, c.file.OtherClients())
		return err
	})
	word := []string{"Disabled", "Enabled"}[v]
	switch {
	case err != nil:
		return fmt.Errorf("unable to set MIG mode to %s for GPU %s: %w", word, g.busID(), err)
	case activation != nil:
		return c.print("Warning: MIG mode is in pending %s state for GPU %s: %v\n", strings.ToLower(word), g.busID(), activation)
	}
	return c.print("%s MIG Mode for GPU %s\n", word, g.busID())
}

// reset resets GPUs. One that is in use is not reset, and the command names it.
func (c *Command) reset(gpus []gpu) error {
	var held []string
	for _, g := range gpus {
		err := c.change(g, func(_ *state.Model, s *state.GPU) error { return mig.Reset(s, c.file.OtherClients()) })
		switch {
		case errors.Is(err, mig.ErrInUse):
			held = append(held, fmt.Sprintf("  GPU %s: In use by another client", g.busID()))
		case err != nil:
			return fmt.Errorf("unable to reset GPU %s: %w", g.busID(), err)
		default:
			if err := c.print("GPU %s was successfully reset.\n", g.busID()); err != nil {
				return err
			}
		}
	}
	if err := c.syncMIG(); err != nil {
		return err
	}
	if len(held) > 0 {
		return fmt.Errorf("the following GPUs could not be reset:\n%s\nend the programs that use these GPUs or have them open, monitors and "+
			"other nvidia-smi included",
			strings.Join(held, "\n"))
	}
	return c.print("All done.\n")
}

// syncMIG brings the tree's capability files up to date after a change of layout.
func (c *Command) syncMIG() error {
	if err := tree.SyncMIG(c.Root, c.body); err != nil {
		return err
	}
	// Where this /dev cannot be written to, nodes do not appear, and there is no error: the real command behaves the same.
	_ = tree.MakeMIGNodes(c.Root, c.body)
	return nil
}

func choice(option, value string, allowed ...string) (int, error) {
	i := slices.Index(allowed, value)
	if i < 0 {
		return 0, fmt.Errorf("%s %s: allowed are %s", option, value, strings.Join(allowed, ", "))
	}
	return i, nil
}
