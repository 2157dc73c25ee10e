// Package options are the flags that every node plugin has: where the hardware, the kubelet and the plugin's own state are.
//
// A flag that takes text can also be given by an environment variable of its name in capitals (--driver-root: DRIVER_ROOT); the flag wins.
package options

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// Node is where things are on the node that a plugin serves.
type Node struct {
	// DriverRoot holds the NVIDIA driver's files: usr/lib64/libnvidia-ml.so.1, usr/bin/nvidia-imex.
	DriverRoot string
	// SysfsRoot and DevRoot stand in for /sys and /dev.
	SysfsRoot, DevRoot string
	// ProcDevices stands in for /proc/devices; what else is read of /proc lies beside it.
	ProcDevices string
	// CDIRoot is where the container runtime looks for CDI specs.
	CDIRoot string
	// KubeletRoot holds the kubelet's plugins and plugins_registry directories.
	KubeletRoot string
	// StateDir is the plugin's own, kept across restarts of the plugin and of the node.
	StateDir string
	// NodeName is the Node object's name.
	NodeName string
	// MetricsAddress serves /metrics and /healthz (host:port); empty: nowhere.
	MetricsAddress string
	// Verbosity is the log level: 0 what a person should know, 4 what a developer may.
	Verbosity int
}

// Bind adds the flags to a flag set, with defaults from the environment, else the places of an ordinary node. name is the role's
// ("gpu-plugin"): its state lies in a directory of that name.
func (n *Node) Bind(flags *pflag.FlagSet, getenv func(string) string, name string) {
	text := func(target *string, flag, fallback, usage string) { Text(flags, getenv, target, flag, fallback, usage) }
	text(&n.DriverRoot, "driver-root", "/", "directory under which the NVIDIA driver's usr/lib64 and usr/bin are")
	text(&n.SysfsRoot, "sysfs-root", "/sys", "directory that stands for /sys")
	text(&n.DevRoot, "dev-root", "/dev", "directory that stands for /dev")
	text(&n.ProcDevices, "proc-devices", "/proc/devices", "file that stands for /proc/devices; the rest of /proc is read beside it")
	text(&n.CDIRoot, "cdi-root", "/var/run/cdi", "directory where the container runtime looks for CDI specs")
	text(&n.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "the kubelet's directory")
	text(&n.StateDir, "state-dir", filepath.Join("/var/lib/gpufabric", name), "directory of this plugin's own state, kept across restarts")
	text(&n.NodeName, "node-name", "", "name of this node's Node object (environment: NODE_NAME, from the downward API)")
	text(&n.MetricsAddress, "metrics-address", "", "host:port that serves /metrics and /healthz; empty: nowhere")
	flags.IntVarP(&n.Verbosity, "v", "v", 0, "log level: 0 what a person should know, 4 what a developer may")
}

// Text adds a flag that takes text; its default is what its environment variable says, fallback where that is empty or not set.
func Text(flags *pflag.FlagSet, getenv func(string) string, target *string, flag, fallback, usage string) {
	if value := getenv(EnvName(flag)); value != "" {
		fallback = value
	}
	flags.StringVar(target, flag, fallback, usage)
}

// EnvName is the environment variable of a flag.
func EnvName(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

// Validate names every flag that cannot work.
func (n *Node) Validate() error {
	var errs []error
	if n.NodeName == "" {
		errs = append(errs, errors.New("--node-name is empty: give the name of this node's Node object, or set NODE_NAME from spec.nodeName"))
	}
	for _, dir := range []struct{ flag, path string }{
		{"cdi-root", n.CDIRoot}, {"kubelet-root", n.KubeletRoot}, {"state-dir", n.StateDir},
	} {
		if !filepath.IsAbs(dir.path) {
			errs = append(errs, fmt.Errorf("--%s %q is not an absolute path: the kubelet and the container runtime use the same path", dir.flag, dir.path))
		}
	}
	return errors.Join(errs...)
}

// ProcRoot is the directory that stands for /proc.
func (n *Node) ProcRoot() string { return filepath.Dir(n.ProcDevices) }

// BootID names the node's current boot; empty where it cannot be read, which compares equal to itself and so never looks like a
// reboot.
func (n *Node) BootID() string {
	data, err := os.ReadFile(filepath.Join(n.ProcRoot(), "sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
