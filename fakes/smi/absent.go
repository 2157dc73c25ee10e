package smi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// StatusError is the exit status of a command that has printed its reason.
type StatusError int

// Error implements error.
func (e StatusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// notSupported is NVML_ERROR_NOT_SUPPORTED, which nvidia-smi exits with.
const notSupported = 3

// absentUsage is power-smoothing's help, which nvidia-smi prints where it gets no option.
const absentUsage = `nvidia-smi power-smoothing of a fake node, whose GPUs have no power smoothing. It knows:
  -h   this help
  -i   a GPU: index, UUID or PCI address
`

// chosen takes the option -i from a subcommand's arguments, and returns the GPUs and the other arguments.
func (c *Command) chosen(command string, args []string) ([]gpu, []string, error) {
	var ids, rest []string
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		if name != "-i" && name != "--id" {
			rest = append(rest, args[i])
			continue
		}
		if !inline {
			if i++; i >= len(args) {
				return nil, nil, fmt.Errorf("%s: option %s needs a value", command, name)
			}
			value = args[i]
		}
		ids = split(value)
	}
	gpus, err := c.selected(ids)
	return gpus, rest, err
}

// only returns the single option, which must be one of those allowed.
func only(command string, args []string, allowed ...string) (string, error) {
	if len(args) != 1 || !slices.Contains(allowed, args[0]) {
		return "", fmt.Errorf("%s %s is unknown; allowed is one of %s, and -i for some GPUs", command, strings.Join(args, " "),
			strings.Join(allowed, ", "))
	}
	return args[0], nil
}

// c2c prints the links to the CPU. Of GPUs without them it fails, as driver 580.159.04 does on an H200.
func (c *Command) c2c(args []string) error {
	gpus, rest, err := c.chosen("c2c", args)
	if err != nil {
		return err
	}
	if _, err := only("c2c", rest, "-s", "--status"); len(rest) > 0 && err != nil {
		return err
	}
	gpus = slices.DeleteFunc(gpus, func(g gpu) bool { return g.model.Coherent == 0 })
	if len(gpus) == 0 {
		return errors.Join(c.print("No Devices support C2C.\n"), StatusError(notSupported))
	}
	for _, g := range gpus {
		if err := c.print("GPU %d: %s (UUID: %s)\n\t C2C Link 0: %d GB/s\n", g.index, g.name(), g.uuid(), c2cBandwidth); err != nil {
			return err
		}
	}
	return nil
}

// c2cBandwidth is that of NVML_FI_DEV_C2C_LINK_GET_MAX_BW (fakes/nvml/field.c), in GB/s.
const c2cBandwidth = 450

// confCompute prints the state of confidential computing, which is off: the feature (-f), or whether GPUs take work in it (-grs).
func (c *Command) confCompute(args []string) error {
	_, rest, err := c.chosen("conf-compute", args)
	if err != nil {
		return err
	}
	option, err := only("conf-compute", rest, "-f", "--get-cc-feature", "-grs", "--get-gpus-ready-state")
	if err != nil {
		return err
	}
	if option == "-f" || option == "--get-cc-feature" {
		return c.print("CC status: OFF\n")
	}
	return c.print("Confidential Compute GPUs Ready state: not-ready\n")
}

// vgpu prints the virtual GPUs of a host, of which a fake node has none.
func (c *Command) vgpu(args []string) error {
	_, rest, err := c.chosen("vgpu", args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		if _, err := only("vgpu", rest, "-q", "--query", "-s", "--supported", "-c", "--creatable", "-p", "-u"); err != nil {
			return err
		}
	}
	return c.print("No supported devices in vGPU mode\n")
}

// powerSmoothing prints its help, as nvidia-smi does without an option.
func (c *Command) powerSmoothing(args []string) error {
	_, rest, err := c.chosen("power-smoothing", args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		if _, err := only("power-smoothing", rest, "-h", "--help"); err != nil {
			return err
		}
	}
	return c.print("%s", absentUsage)
}
