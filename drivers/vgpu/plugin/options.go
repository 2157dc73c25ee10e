package plugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/node/options"
	"gpufabric.io/drivers/vgpu/settings"
)

// Options are the role's flags.
type Options struct {
	options.Node
	// CDIHook is nvidia-cdi-hook on the host; empty: CDIHookProgram, installed below the state directory; none: containers get no
	// hooks.
	CDIHook string
	// CDIHookProgram is nvidia-cdi-hook in this container.
	CDIHookProgram string
	// DeviceConfig and NodeConfig are the files of the two ConfigMaps; empty or missing: none.
	DeviceConfig, NodeConfig string
	// Handover is the directory shared with the GPU plugin; empty where that plugin is not installed.
	Handover string
	// RuntimeSocket is the container runtime's NRI socket; empty: do without NRI.
	RuntimeSocket string
	// Limits is the mechanism that limits containers to their shares: auto, or a backend of package injection.
	Limits string
	// LimiterLibrary is this project's libvgpu.so in this container.
	LimiterLibrary string
	// LimiterClosed makes that library refuse all memory where it cannot count, and has pods failed that use a GPU without it.
	LimiterClosed bool
	// HostProc is the node's /proc; where it is missing, no container without the library is found.
	HostProc string
	// LendCores lets a container use the time of a GPU that others leave, beyond its own percentage.
	LendCores bool
	// LimiterDir holds HAMi-core's libvgpu.so and ld.so.preload on the host; empty: there is none.
	LimiterDir string
	// LimiterBytes bounds each directory that a container writes through its limiter, in bytes; 0: no limit.
	LimiterBytes int64
	// ConfigNamespace is the namespace of Volcano's two ConfigMaps; empty: only files.
	ConfigNamespace string
	// Scheduler is the scheduler of the pods with shares: volcano or gpufabric.
	Scheduler string
	// RefusalPatience is how long a pod may be refused its shares before it is failed; 0: for ever.
	RefusalPatience time.Duration
	// Handshake also answers the annotation handshake of Volcano 1.15 and earlier.
	Handshake bool
	// ForbidControlOff refuses containers that switch off their limiter by environment.
	ForbidControlOff bool
	// Namespace is the namespace of the ConfigMap with the agreed unit of memory; empty: each node chooses for itself.
	Namespace string

	flags     *pflag.FlagSet
	split     int
	factor    int
	memory    float64
	cores     float64
	mig, list string
	recheck   time.Duration // of the GPUs' health; 0: the default of package health
	pause     time.Duration // between two answers to a handshake; 0: handshakePause
}

// stateFile is a file of the role's state.
func (o *Options) stateFile(name string) string { return filepath.Join(o.StateDir, name) }

// Bind adds the flags to a flag set. Those that the public plugin also has have its names.
func (o *Options) Bind(flags *pflag.FlagSet, getenv func(string) string) {
	o.Node.Bind(flags, getenv, Role)
	o.flags = flags
	text := func(target *string, flag, fallback, usage string) {
		options.Text(flags, getenv, target, flag, fallback, usage)
	}
	text(&o.CDIHook, "cdi-hook", "", "nvidia-cdi-hook on the host, run when a container starts; empty: this image's, put below "+
		"--state-dir; none: no hooks")
	text(&o.CDIHookProgram, "cdi-hook-program", edits.HookProgram, "nvidia-cdi-hook in this container, linked statically")
	text(&o.DeviceConfig, "device-config", "", "device-config.yaml of the ConfigMap volcano-vgpu-device-config")
	text(&o.NodeConfig, "node-config", "", "config.json of the ConfigMap volcano-vgpu-node-config")
	text(&o.Handover, "handover-dir", "/var/lib/gpufabric/handover",
		"directory shared with gpu-plugin, which taints a GPU in DRA before it is shared here; empty where gpu-plugin does not run")
	text(&o.RuntimeSocket, "nri-socket", "/var/run/nri/nri.sock",
		"the container runtime's NRI socket; empty: do without, and refuse what is then ambiguous")
	flags.Int64Var(&o.LimiterBytes, "limiter-size", 0, "bytes that a container may put into the directory of its limiter, and "+
		"into that of its "+
		"limiter's lock: each is a tmpfs of its own, which takes CAP_SYS_ADMIN and a volume that propagates mounts; 0: no bound")
	text(&o.Limits, "limits", "auto", "what holds containers to their shares: native (NVIDIA's driver from r615 on, with cgroup v2: memory; "+
		"cores by library), library (libvgpu.so of this project: memory and cores), hami-core (that of --limiter-dir), "+
		"none (environment alone, for a limiter in the image); auto: hami-core where --limiter-dir is set, "+
		"else native where the driver can, else library where it is there. MIG instances need none")
	text(&o.LimiterLibrary, "limiter-library", limiter.Program, "libvgpu.so in this container, put below --state-dir for containers")
	flags.BoolVar(&o.LimiterClosed, "limiter-closed", false, "have the library refuse all memory of GPUs where it cannot count what the "+
		"container has, as where its directory is full, and fail the pod of a container that uses a GPU without the library; without, each "+
		"process is held to the limits by itself, and such a pod gets an Event")
	text(&o.HostProc, "host-proc", "/host/proc", "the node's /proc, by which processes that NVML lists are found in containers; where it is "+
		"missing, no container without the library is found")
	flags.BoolVar(&o.LendCores, "lend-cores", true, "with library or native: a container may use what others leave of a GPU's time, beyond "+
		"its own percentage; without, it never has more than that")
	text(&o.LimiterDir, "limiter-dir", "", "directory on the host with HAMi-core's libvgpu.so and ld.so.preload")
	text(&o.ConfigNamespace, "config-namespace", "", "namespace in which Volcano's scheduler reads volcano-vgpu-device-config, "+
		"and so its plugin; empty: the files of --device-config and --node-config alone")
	text(&o.Scheduler, "scheduler", string(settings.Volcano), "who places pods with shares: volcano or gpufabric; what Volcano cannot "+
		"follow is refused where it does")
	flags.DurationVar(&o.RefusalPatience, "refusal-patience", 5*time.Minute, "how long a pod may be refused its shares until it is failed, "+
		"so that its controller makes another; 0: for ever")
	flags.BoolVar(&o.Handshake, "handshake", true, "answer the handshake annotation of Volcano up to 1.14.2 and of 1.15.0, at most every 30 s")
	flags.BoolVar(&o.ForbidControlOff, "forbid-control-off", false,
		"refuse containers whose environment has CUDA_DISABLE_CONTROL, by which they switch their limits off, or "+
			"GPU_CORE_UTILIZATION_POLICY=disable, by which they switch their limit of cores off (unless the device configuration has "+
			"disableCoreLimit)")
	flags.StringVar(&o.Namespace, "namespace", getenv("POD_NAMESPACE"),
		"namespace of the ConfigMap gpufabric-vgpu-unit, by which nodes agree on a unit of memory where none is set (environment: "+
			"POD_NAMESPACE); empty: each chooses for itself")
	flags.IntVar(&o.split, "device-split-count", 0, "containers that may share one GPU; before the configuration file where set")
	flags.IntVar(&o.factor, "gpu-memory-factor", 0,
		"MiB in one unit of memory; 0: the smallest that the kubelet can receive; before the configuration file where set")
	flags.Float64Var(&o.memory, "device-memory-scaling", 1,
		"multiple of a GPU's memory that is promised; before the configuration file where set")
	flags.Float64Var(&o.cores, "device-cores-scaling", 1,
		"multiple of a GPU's cores that is promised; before the configuration file where set")
	flags.StringVar(&o.mig, "mig-strategy", "none", "only none: MIG instances are claimed through the DeviceClass mig.nvidia.com")
	flags.StringVar(&o.list, "device-list-strategy", "cdi-annotations",
		"accepted for the public plugin's manifests: cdi-annotations, cdi-cri, envvar; devices always come through CDI")
}

// Validate returns an error for every flag with an unusable value.
func (o *Options) Validate() error {
	errs := []error{o.Node.Validate()}
	if o.mig != "none" {
		errs = append(errs, fmt.Errorf("--mig-strategy %q: only none is allowed; claim MIG instances through the DeviceClass mig.nvidia.com",
			o.mig))
	}
	if o.RefusalPatience < 0 {
		errs = append(errs, fmt.Errorf("--refusal-patience %s: 0 and more are allowed", o.RefusalPatience))
	}
	if _, err := o.backend(nil); err != nil { // the driver's abilities are known once it is there
		errs = append(errs, err)
	}
	if o.Scheduler != string(settings.Volcano) && o.Scheduler != string(settings.GPUFabric) {
		errs = append(errs, fmt.Errorf("--scheduler %q: %s and %s are allowed", o.Scheduler, settings.Volcano, settings.GPUFabric))
	}
	switch o.list {
	case "cdi-annotations", "cdi-cri", "envvar":
	default:
		errs = append(errs, fmt.Errorf("--device-list-strategy %q: cdi-annotations, cdi-cri and envvar are allowed, and mean the same here: "+
			"devices come through CDI", o.list))
	}
	return errors.Join(errs...)
}
