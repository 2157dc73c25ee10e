// Package options defines the flags that every node plugin has: the places of the hardware, the kubelet and the plugin's own state.
//
// A flag that takes text can also be given by an environment variable of its name in capitals (--driver-root: DRIVER_ROOT); the
// flag wins.
package options

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
)

// Node holds the places on the node that a plugin serves.
type Node struct {
	// DriverRoot is where the NVIDIA driver's files may be: one directory, or several separated by commas in order of preference. Each
	// is PATH, or PATH=HOST where the path on the node differs from the path in this process.
	DriverRoot string
	// DevRoot stands in for /dev, as PATH or PATH=HOST. A driver with device nodes in a dev directory below its own root is used with
	// those.
	DevRoot string
	// OwnDev is this container's own /dev. The plugin makes the driver's device nodes there for this process. Empty: it makes none.
	OwnDev string
	// SysfsRoot stands in for /sys.
	SysfsRoot string
	// CgroupRoot is where the node's cgroups are mounted, as PATH or PATH=HOST; empty: fs/cgroup below SysfsRoot.
	CgroupRoot string
	// ProcDevices stands in for /proc/devices. The plugin reads its other files of /proc from the same directory.
	ProcDevices string
	// CDIRoot is where the container runtime looks for CDI specs.
	CDIRoot string
	// KubeletRoot holds the kubelet's plugins and plugins_registry directories.
	KubeletRoot string
	// StateDir is the plugin's own directory. It is kept across restarts of the plugin and of the node.
	StateDir string
	// DeviceMetadata gives containers the attributes of their claims' devices in files (KEP-5304).
	DeviceMetadata bool
	// DrainDir is the directory through which the roles of a node agree on a drain of its GPUs; empty: drain, beside StateDir.
	DrainDir string
	// NodeName is the Node object's name.
	NodeName string
	// MetricsAddress serves /metrics and /healthz (host:port); empty: nowhere.
	MetricsAddress string
	// MetricsAuth serves /metrics with TLS, and only to callers whose token may get that path.
	MetricsAuth bool
	// Files reports changed directories; nil: a watcher of the role's own, with an inotify instance of its own.
	Files *filewatch.Watcher
	// Verbosity is the log level: 0 for operators, 4 for developers.
	Verbosity int
}

// Bind adds the flags to a flag set. Their defaults come from the environment, else are the places of an ordinary node. name is the
// role's ("gpu-plugin"): its state directory has that name.
func (n *Node) Bind(flags *pflag.FlagSet, getenv func(string) string, name string) {
	text := func(target *string, flag, fallback, usage string) { Text(flags, getenv, target, flag, fallback, usage) }
	text(&n.DriverRoot, "driver-root", "/", "directories that may hold the NVIDIA driver's usr/lib64 and usr/bin, comma-separated; "+
		"PATH=HOST where the node has one at another path")
	text(&n.SysfsRoot, "sysfs-root", "/sys", "directory that stands for /sys")
	text(&n.DevRoot, "dev-root", "/dev", "directory that stands for /dev; PATH=HOST where the node has it at another path")
	text(&n.OwnDev, "own-dev", "", "/dev of this container, where nodes of the driver are made that came after its start; empty: it is "+
		"left alone")
	text(&n.CgroupRoot, "cgroup-root", "", "directory where the node's cgroups are mounted, all of them and not this container's alone, by "+
		"which the role sees that a container has ended; PATH=HOST where the node has it at another path; empty: fs/cgroup below --sysfs-root")
	text(&n.ProcDevices, "proc-devices", "/proc/devices", "file that stands for /proc/devices; the rest of /proc is read beside it")
	text(&n.CDIRoot, "cdi-root", "/var/run/cdi", "directory where the container runtime looks for CDI specs")
	text(&n.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "the kubelet's directory")
	text(&n.StateDir, "state-dir", filepath.Join("/var/lib/gpufabric", name), "directory of this plugin's own state, kept across restarts")
	text(&n.DrainDir, "drain-dir", "", "directory, shared by the roles of a node, by which they agree on a drain of its GPUs; empty: "+
		"drain, beside --state-dir")
	text(&n.NodeName, "node-name", "", "name of this node's Node object (environment: NODE_NAME, from the downward API)")
	text(&n.MetricsAddress, "metrics-address", "", "host:port that serves /metrics and /healthz; empty: nowhere")
	flags.BoolVar(&n.MetricsAuth, "metrics-authentication", false, "serve /metrics by TLS, and only to those whose token may get that path")
	flags.IntVarP(&n.Verbosity, "v", "v", 0, "log level: 0 for operators, up to 4 for developers")
}

// BindClaims adds the flags of a role that serves claims.
func (n *Node) BindClaims(flags *pflag.FlagSet) {
	flags.BoolVar(&n.DeviceMetadata, "device-metadata", false, "give containers a file with the attributes of each request's devices, "+
		"as KEP-5304 describes; a GPU that is passed through always has one")
}

// Text adds a flag that takes text. Its default comes from its environment variable, or is fallback where that is empty or unset.
func Text(flags *pflag.FlagSet, getenv func(string) string, target *string, flag, fallback, usage string) {
	if value := getenv(EnvName(flag)); value != "" {
		fallback = value
	}
	flags.StringVar(target, flag, fallback, usage)
}

// EnvName is the environment variable of a flag.
func EnvName(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

// Validate returns an error for every flag with an unusable value.
func (n *Node) Validate() error {
	var errs []error
	if n.NodeName == "" {
		errs = append(errs, errors.New("--node-name is empty: give the name of this node's Node object, or set NODE_NAME from spec.nodeName"))
	}
	if _, err := driver.ParsePlaces(n.DriverRoot); err != nil {
		errs = append(errs, fmt.Errorf("--driver-root: %w", err))
	}
	if _, err := driver.ParsePlace(n.DevRoot); err != nil {
		errs = append(errs, fmt.Errorf("--dev-root: %w", err))
	}
	if n.CgroupRoot != "" {
		if _, err := driver.ParsePlace(n.CgroupRoot); err != nil {
			errs = append(errs, fmt.Errorf("--cgroup-root: %w", err))
		}
	}
	for _, dir := range []struct{ flag, path string }{
		{"cdi-root", n.CDIRoot}, {"kubelet-root", n.KubeletRoot}, {"state-dir", n.StateDir},
	} {
		if !filepath.IsAbs(dir.path) {
			errs = append(errs, fmt.Errorf("--%s %q is not an absolute path: the kubelet and the container runtime use the same path", dir.flag,
				dir.path))
		}
	}
	return errors.Join(errs...)
}

// Driver returns where the NVIDIA driver may be.
func (n *Node) Driver() driver.Search {
	roots, err := driver.ParsePlaces(n.DriverRoot)
	if err != nil {
		roots = nil // Validate has reported it
	}
	return driver.Search{Roots: roots, Dev: n.Dev(), ProcRoot: n.ProcRoot(), OwnDev: n.OwnDev}
}

// Dev is the directory in the place of /dev.
func (n *Node) Dev() driver.Place {
	dev, err := driver.ParsePlace(n.DevRoot)
	if err != nil {
		return driver.Here(n.DevRoot) // Validate has reported it
	}
	return dev
}

// Cgroups is where the node's cgroups are mounted.
func (n *Node) Cgroups() driver.Place {
	fallback := driver.Here(filepath.Join(n.SysfsRoot, "fs/cgroup"))
	if n.CgroupRoot == "" {
		return fallback
	}
	place, err := driver.ParsePlace(n.CgroupRoot)
	if err != nil {
		return fallback // Validate has reported it
	}
	return place
}

// Drain returns how the role agrees with the node's other roles on a drain of the GPUs.
func (n *Node) Drain() drain.Directory {
	return drain.Directory{Path: cmp.Or(n.DrainDir, drain.SharedDirectory(n.StateDir)), Files: n.Files}
}

// ProcRoot is the directory in the place of /proc.
func (n *Node) ProcRoot() string { return filepath.Dir(n.ProcDevices) }

// bootID is the file with the kernel's ID of the current boot, below /proc. It is the same in every container.
const bootID = "sys/kernel/random/boot_id"

// BootID returns the ID of the node's current boot. It reads it below ProcRoot, or from the real /proc where a tree that stands in
// for /proc has none. It is empty where it cannot be read. Compare boots with SameBoot: an unknown ID is no proof that the node was
// not rebooted.
func (n *Node) BootID() string {
	data, err := os.ReadFile(filepath.Join(n.ProcRoot(), bootID))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = os.ReadFile(filepath.Join("/proc", bootID))
	}
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// SameBoot reports whether two boots are certainly the same.
func SameBoot(a, b string) bool { return a != "" && a == b }
