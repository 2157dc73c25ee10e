package plugin

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/node/options"
)

// Options are the role's flags.
type Options struct {
	options.Node
	// CDIHook is nvidia-cdi-hook on the host; empty: CDIHookProgram, installed below the state directory; none: containers get no
	// hooks.
	CDIHook string
	// CDIHookProgram is nvidia-cdi-hook in this container.
	CDIHookProgram string
	// ContainerEdits is a file of CDI containerEdits for every container with a GPU.
	ContainerEdits string
	// Forms has the forms of GPUs by node, in JSON (package forms); empty: whole.
	Forms string
	// Passthrough lets form vfio be chosen: its nodes' GPUs are bound to vfio-pci for virtual machines.
	Passthrough bool
	// FabricManager is the Unix socket of the node's fabric manager, whose partitions are activated for virtual machines; empty: GPUs
	// behind NVSwitches are not passed through.
	FabricManager string
	// MIG allows or forbids the division of GPUs on demand: dynamic, or static (only an administrator's instances are offered).
	MIG string
	// UnknownMIG is the action on MIG instances that belong to no claim when the plugin starts: keep or remove.
	UnknownMIG string
	// ShareMemory and ShareCores are the defaults of a share of a GPU: a quantity ("" is a tenth) and percent (0 is 10).
	ShareMemory string
	// MPSDir is where MPS control daemons and their clients meet; preferably on a tmpfs of the host.
	MPSDir string
	// MPSSize bounds the directory of each claim with MPS, as sharing.ParseBounds reads it.
	MPSSize string
	// MPSKeeper: the role mps-keeper runs the MPS control daemons, so that they outlive this role; otherwise they are this
	// process's children.
	MPSKeeper bool
	// HandoverDir is shared with device plugins that offer some of this node's GPUs; empty: there are none.
	HandoverDir string
	// HandoverTo are the device plugins that may have GPUs. GPUs that others requested, which are no longer installed, go back to DRA.
	HandoverTo []string
	// DevicePlugin are the UUIDs of the GPUs that are offered as nvidia.com/gpu instead of by DRA; "all": every one.
	DevicePlugin []string
	ShareCores   int64
	// Limits is the mechanism that limits the containers of shares: auto, library or none.
	Limits string
	// FullAfter is how long a shared GPU is full before it is no longer published; 0: it always is.
	FullAfter time.Duration
	// LendCores lets a claim use the time of a GPU that others leave, beyond its own percentage.
	LendCores bool
	// LimiterBytes is how much the containers of a share may put into the directory in which the library counts; 0: they have none.
	LimiterBytes int64
	// LimiterClosed makes the library refuse all memory where it cannot count, and has pods failed that use a share without it.
	LimiterClosed bool
	// HostProc is the node's /proc; where it is missing, no container without the library is found.
	HostProc string
	// LimiterLibrary is this project's libvgpu.so in this container.
	LimiterLibrary string

	formsConfig devices.Choice // the parsed Forms, once valid
}

// Bind adds the flags to a flag set, with defaults from the environment.
func (o *Options) Bind(flags *pflag.FlagSet, getenv func(string) string, name string) {
	o.Node.Bind(flags, getenv, name)
	o.BindClaims(flags)
	text := func(target *string, flag, fallback, usage string) {
		options.Text(flags, getenv, target, flag, fallback, usage)
	}
	text(&o.CDIHook, "cdi-hook", "", "nvidia-cdi-hook on the host, run when a container starts; empty: this image's, put below "+
		"--state-dir; none: no hooks")
	text(&o.CDIHookProgram, "cdi-hook-program", edits.HookProgram, "nvidia-cdi-hook in this container, linked statically")
	text(&o.ContainerEdits, "container-edits", "", "YAML file of CDI containerEdits that every container with a GPU gets")
	text(&o.MIG, "mig", "dynamic", "dynamic: GPUs are divided on demand; static: only existing MIG instances are offered")
	text(&o.Forms, "forms", "", `forms in which GPUs are offered, as JSON: {"default": {"form": "whole"}, "nodes": [{"nodeSelector": `+
		`{...}, "form": "mig", "migProfiles": ["1g.10gb"]}]}`)
	flags.BoolVar(&o.Passthrough, "passthrough", false, "allow form vfio, in which whole GPUs are passed through to virtual machines: on its "+
		"nodes the role changes the drivers of GPUs, and needs --host-proc")
	text(&o.FabricManager, "fabric-manager", "", "with --passthrough: Unix socket of the fabric manager (FM_CMD_UNIX_SOCKET_PATH), whose "+
		"partitions are activated for virtual machines; empty: GPUs behind NVSwitches are not passed through")
	text(&o.UnknownMIG, "unknown-mig-instances", "keep", "MIG instances that belong to no claim at the start: keep (and offer them) or remove")
	text(&o.Limits, "limits", limitsAuto, "what holds the containers of shares to their memory and cores: library (libvgpu.so of "+
		"this project), none (environment alone, for a limiter in their image); auto: the library where it is there")
	flags.DurationVar(&o.FullAfter, "withdraw-full-after", 0, "how long nothing of a shared GPU is left until it is taken out of the node's "+
		"ResourceSlices, so that the scheduler passes it over; it is published again with the first share that ends; 0: never")
	flags.BoolVar(&o.LendCores, "lend-cores", true, "with library: a share may use what others leave of a GPU's time, beyond its own "+
		"percentage; without, it never has more than that")
	text(&o.LimiterLibrary, "limiter-library", limiter.Program, "libvgpu.so in this container, put below --state-dir for containers")
	flags.Int64Var(&o.LimiterBytes, "limiter-size", 0, "with library: bytes that the containers of a share may put into the directory "+
		"where it counts, a tmpfs of its own, which takes CAP_SYS_ADMIN and a volume that propagates mounts; 0: each container counts by itself")
	flags.BoolVar(&o.LimiterClosed, "limiter-closed", false, "have the library refuse all memory of a share where it cannot count what the "+
		"containers use, and fail pods that use a share without the library")
	text(&o.HostProc, "host-proc", "/host/proc", "the node's /proc, by which processes that NVML lists are found in containers; where it is "+
		"missing, containers that use a share without the library are not reported")
	text(&o.ShareMemory, "share-memory", "", "memory of a share of a GPU that asks for none, such as 4Gi; empty: a tenth of the GPU")
	text(&o.MPSDir, "mps-dir", "/run/gpufabric/mps",
		"directory, at the same path on the host, where MPS control daemons and their clients meet; best on a tmpfs of its own, since clients "+
			"can fill it")
	text(&o.MPSSize, "mps-size", "", "how much the containers of a claim with MPS may put into their /dev/shm, which they share with its "+
		"daemon, such as 1Gi: each is a tmpfs of its own, which takes CAP_SYS_ADMIN and a volume that propagates mounts; 0: no bound")
	flags.BoolVar(&o.MPSKeeper, "mps-keeper", false,
		"ask the role mps-keeper, which has the same --mps-dir, for MPS control daemons: they outlive this role's restarts")
	text(&o.HandoverDir, "handover-dir", "/var/lib/gpufabric/handover",
		"directory shared with vgpu-plugin, by which it requests GPUs; empty: nobody else offers GPUs")
	flags.StringSliceVar(&o.HandoverTo, "handover-to", []string{"vgpu"},
		"device plugins of this node that may have GPUs; GPUs that others requested earlier go back to DRA once nothing runs on them")
	flags.StringSliceVar(&o.DevicePlugin, "device-plugin", nil,
		"UUIDs of GPUs offered as nvidia.com/gpu by the device plugin API instead of by DRA, or all")
	flags.Int64Var(&o.ShareCores, "share-cores", 10, "percent of the cores of a share of a GPU that asks for none, 1 to 100")
}

// Validate returns an error for every flag with an unusable value.
func (o *Options) Validate() error {
	errs := []error{o.Node.Validate()}
	oneOf := func(flag, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		errs = append(errs, fmt.Errorf("--%s %q: allowed are %v", flag, value, allowed))
	}
	var err error
	if o.formsConfig, err = devices.ParseChoice(o.Forms); err != nil {
		errs = append(errs, fmt.Errorf("--forms %s: %w", o.Forms, err))
	}
	o.formsConfig.Passthrough = o.Passthrough
	for _, f := range append(o.formsConfig.Rules(), o.formsConfig.Default) {
		if f.Mode == devices.ModeVFIO && !o.Passthrough {
			errs = append(errs, fmt.Errorf("--forms %s: form %s needs --passthrough", o.Forms, devices.ModeVFIO))
		}
	}
	if o.FabricManager != "" && (!o.Passthrough || !path.IsAbs(o.FabricManager)) {
		errs = append(errs, fmt.Errorf("--fabric-manager %q: must be the absolute path of a Unix socket, and needs --passthrough",
			o.FabricManager))
	}
	if _, err := sharing.ParseBounds(o.MPSSize); err != nil {
		errs = append(errs, err)
	}
	oneOf("limits", o.Limits, limitsAuto, limitsLibrary, limitsNone)
	oneOf("mig", o.MIG, "dynamic", "static")
	oneOf("unknown-mig-instances", o.UnknownMIG, "keep", "remove")
	if len(o.DevicePlugin) > 0 && o.HandoverDir == "" {
		errs = append(errs, errors.New("--device-plugin needs --handover-dir: its GPUs are tainted in DRA first"))
	}
	if len(o.DevicePlugin) > 1 && slices.Contains(o.DevicePlugin, "all") {
		errs = append(errs, fmt.Errorf("--device-plugin=%s: all includes every GPU: give all, or the UUIDs",
			strings.Join(o.DevicePlugin, ",")))
	}
	for _, gpu := range o.DevicePlugin { // all nodes share one list: a UUID may belong to another node's GPU
		if gpu != "all" && !handover.IsGPU(gpu) {
			errs = append(errs, fmt.Errorf("--device-plugin %q: must be all, or a GPU's UUID (GPU-... in nvidia-smi -L)", gpu))
		}
	}
	if o.LimiterBytes != 0 && o.LimiterBytes < limiter.LeastBytes {
		errs = append(errs, fmt.Errorf("--limiter-size %d: allowed are 0, and %d bytes (the size of the library's files) or more", o.LimiterBytes,
			limiter.LeastBytes))
	}
	if o.FullAfter < 0 {
		errs = append(errs, fmt.Errorf("--withdraw-full-after %s: must be 0 (never) or more", o.FullAfter))
	}
	if o.ShareCores < 1 || o.ShareCores > 100 {
		errs = append(errs, fmt.Errorf("--share-cores %d: allowed are 1 to 100", o.ShareCores))
	}
	if _, err := o.offer(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// offer returns how GPUs are offered.
func (o *Options) offer() (devices.Options, error) {
	offer := devices.Options{NoMIG: o.MIG == "static", Share: devices.Share{Cores: o.ShareCores}}
	if o.ShareMemory == "" {
		return offer, nil
	}
	q, err := resource.ParseQuantity(o.ShareMemory)
	if err != nil || q.Sign() <= 0 {
		return offer, fmt.Errorf("--share-memory %q: must be a positive quantity, such as 4Gi", o.ShareMemory)
	}
	offer.Share.Memory = uint64(q.Value()) //nolint:gosec // positive
	return offer, nil
}
