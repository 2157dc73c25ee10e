package smi

import (
	"errors"
	"fmt"

	"gpufabric.io/fakes/state"
)

// computePolicy is nvidia-smi compute-policy: it shows or sets how long a process has a GPU before the next one.
func (c *Command) computePolicy(args []string) error {
	var list bool
	var slice string
	var gpus []string
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-l", "--list":
			list = true
			continue
		case "-i", "--id", "--set-timeslice":
		default:
			return fmt.Errorf("compute-policy: option %q is unknown; see nvidia-smi -h", args[i])
		}
		if i+1 == len(args) {
			return fmt.Errorf("compute-policy: option %s needs a value", args[i])
		}
		i++
		if args[i-1] == "--set-timeslice" {
			slice = args[i]
		} else {
			gpus = split(args[i])
		}
	}
	if list == (slice != "") {
		return errors.New("compute-policy: give either --list or --set-timeslice; see nvidia-smi -h")
	}
	selected, err := c.selected(gpus)
	if err != nil {
		return err
	}
	if list {
		return c.listPolicies(selected)
	}
	v, err := choice("--set-timeslice", slice, "0", "1", "2", "3")
	if err != nil {
		return err
	}
	for _, g := range selected {
		if err := c.change(g, func(_ *state.Model, s *state.GPU) error { s.Core.TimeSlice = uint32(v); return nil }); err != nil {
			return fmt.Errorf("unable to set the time slice of GPU %s: %w", g.busID(), err)
		}
		if err := c.print("Successfully set timeslice for GPU %s\n", g.uuid()); err != nil {
			return err
		}
	}
	return nil
}

func (c *Command) listPolicies(gpus []gpu) error {
	const rule = "+-------------------------------------+\n"
	if err := c.print(rule + "| GPU compute policies:               |\n| GPU     Name           Value        |\n" +
		"|=====================================|\n"); err != nil {
		return err
	}
	for _, g := range gpus {
		if err := c.print("| %3d   %-15s %-14s|\n", g.index, "Timeslice",
			[]string{"Default", "Short", "Medium", "Long"}[g.Core.TimeSlice%4]); err != nil {
			return err
		}
	}
	return c.print(rule)
}
