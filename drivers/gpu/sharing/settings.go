package sharing

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// Settings are the settings of a claim's daemon. They are stored on disk: fields are only ever added.
type Settings struct {
	// Devices are UUIDs of GPUs and MIG devices in the order of the claim; an index in the limits refers to them.
	Devices []string `json:"devices,omitempty"`
	// Nodes are the device nodes below /dev that open them, such as nvidia0; nil: all of the driver's.
	Nodes []string `json:"nodes,omitempty"`
	// Config may be nil.
	Config *v1beta1.MpsConfig `json:"config,omitempty"`
}

// commonNodes are the driver's device nodes that every CUDA program opens.
func commonNodes() []string { return []string{"nvidiactl", "nvidia-uvm"} }

// command is one setting as a command of the control daemon. The daemon ignores a bad setting without an error. So the setting is
// read back afterwards.
type command struct {
	set, get string
	// taken reports whether an answer is the setting.
	taken func(answer string) bool
}

// commands are the settings. The general limit comes before those of single devices, which take precedence.
func (s Settings) commands() []command {
	if s.Config == nil {
		return nil
	}
	var out []command
	if p := s.Config.DefaultActiveThreadPercentage; p != nil && *p > 0 { // for the public driver 0 is no limit; the daemon would refuse it
		out = append(out, command{
			set: "set_default_active_thread_percentage " + strconv.Itoa(*p), get: "get_default_active_thread_percentage",
			taken: func(answer string) bool { return answer == fmt.Sprintf("%d.0", *p) },
		})
	}
	for i, limit := range s.memoryLimits() {
		if limit != "" {
			out = append(out, command{
				set:   fmt.Sprintf("set_default_device_pinned_mem_limit %d %s", i, limit),
				get:   fmt.Sprintf("get_default_device_pinned_mem_limit %d", i),
				taken: func(answer string) bool { return answer != "" }, // whole gigabytes are reported as such, and rounded
			})
		}
	}
	return out
}

// memoryLimits are the limits of pinned memory of each device, such as 4096M; empty: none.
func (s Settings) memoryLimits() []string {
	out := make([]string, len(s.Devices))
	if s.Config == nil {
		return out
	}
	for i, device := range s.Devices {
		limit := s.Config.DefaultPinnedDeviceMemoryLimit
		for _, key := range []string{strconv.Itoa(i), device} {
			if own, ok := s.Config.DefaultPerDevicePinnedMemoryLimit[key]; ok {
				limit = &own
			}
		}
		if limit != nil {
			out[i] = fmt.Sprintf("%dM", limit.Value()>>20)
		}
	}
	return out
}

// defaults is the environment of a daemon that starts with the limits. The commands come too late for a client that connects first, after
// a restart: its server goes on without a limit of memory (seen with 580.159.04).
func (s Settings) defaults() []string {
	var out, memory []string
	if s.Config != nil && s.Config.DefaultActiveThreadPercentage != nil && *s.Config.DefaultActiveThreadPercentage > 0 {
		out = append(out, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+strconv.Itoa(*s.Config.DefaultActiveThreadPercentage))
	}
	for i, limit := range s.memoryLimits() {
		if limit != "" {
			memory = append(memory, fmt.Sprintf("%d=%s", i, limit))
		}
	}
	if memory != nil {
		out = append(out, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+strings.Join(memory, ","))
	}
	return out
}

// CheckLimits refuses a limit of a single device that would have no effect: of a device that is not in the claim, or that has another
// limit under its other name. A device without a UUID is not made yet, and a limit of a MIG device may be its.
func (s Settings) CheckLimits() error {
	if s.Config == nil {
		return nil
	}
	unmade := slices.Contains(s.Devices, "")
	names := make([]string, len(s.Devices))
	for i, device := range s.Devices {
		if names[i] = strconv.Itoa(i); device != "" {
			names[i] += " (" + device + ")"
		}
	}
	limited := map[int]string{}
	for _, key := range slices.Sorted(maps.Keys(s.Config.DefaultPerDevicePinnedMemoryLimit)) {
		at := fmt.Sprintf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[%s]", key)
		device := slices.IndexFunc(s.Devices, func(d string) bool { return d == key })
		if index, err := strconv.Atoi(key); err == nil && index >= 0 && index < len(s.Devices) {
			device = index
		}
		switch other, twice := limited[device]; {
		case device < 0 && unmade && strings.HasPrefix(key, "MIG-"):
		case device < 0:
			return fmt.Errorf("%s: the claim has no such device; allowed are %s, by index or by UUID", at, strings.Join(names, ", "))
		case twice:
			return fmt.Errorf("%s: device %s has a limit already, as %s: give one of the two", at, names[device], other)
		default:
			limited[device] = key
		}
	}
	return nil
}

// multiUser reports whether clients of several users share one MPS server.
func (s Settings) multiUser() bool {
	return s.Config != nil && s.Config.MultiUser != nil && *s.Config.MultiUser
}

// environment is the additional environment of the daemon and its client, beside that of every driver program.
func (s Settings) environment(pipe, log string) []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe, "CUDA_MPS_LOG_DIRECTORY=" + log, "CUDA_VISIBLE_DEVICES=" + strings.Join(s.Devices, ",")}
}

// nodes are all device nodes that the daemon gets.
func (s Settings) nodes() []string {
	if s.Nodes == nil {
		return nil
	}
	return slices.Concat(commonNodes(), s.Nodes)
}

// Edits make a claim's containers clients of its daemon. dir is the MPS's Dir.
func Edits(dir string, claim types.UID) specs.ContainerEdits {
	options := []string{"rw", "nosuid", "nodev", "bind"}
	d := directory{dir: dir, claim: claim}
	return specs.ContainerEdits{
		Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + containerPipes},
		Mounts: []*specs.Mount{
			{HostPath: d.path("pipe"), ContainerPath: containerPipes, Options: options},
			{HostPath: d.path("shm"), ContainerPath: "/dev/shm", Options: options},
		},
	}
}
