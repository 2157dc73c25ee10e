package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/internal/strict"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/record"
)

// mostMiB is the largest output of nvidia-smi -q -x; eight GPUs have 0.4 MiB.
const mostMiB = 16

// machineFlags are the places where to read the real machine.
type machineFlags struct {
	name, smi, xml, sysfs, imex string
}

func (m *machineFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&m.smi, "nvidia-smi", "nvidia-smi", "the command to ask; empty on a machine without GPUs")
	f.StringVar(&m.xml, "xml", "", "a file with the output of nvidia-smi -q -x, instead of asking")
	f.StringVar(&m.sysfs, "sysfs", "/sys", "root of sysfs")
	f.StringVar(&m.imex, "imex", "", "the command nvidia-imex, if the machine has it")
}

// read reads the machine.
func (m *machineFlags) read(ctx context.Context) (*profile.Profile, error) {
	machine := record.Machine{Name: m.name, Sysfs: m.sysfs}
	_, err := os.Stat(filepath.Join(m.sysfs, "bus"))
	if err != nil {
		return nil, fmt.Errorf("--sysfs %s is not a sysfs: %w", m.sysfs, err)
	}
	switch {
	case m.xml != "":
		machine.SMI, err = strict.ReadFile(m.xml, mostMiB)
		if err == nil && len(machine.SMI) == 0 {
			err = fmt.Errorf("%s is empty; write the output of nvidia-smi -q -x there, or omit --xml", m.xml)
		}
	case m.smi != "":
		machine.SMI, err = ask(ctx, m.smi, "-q", "-x")
		if err == nil {
			var capability []byte
			capability, err = ask(ctx, m.smi, "--query-gpu=compute_cap", "--format=csv,noheader")
			machine.ComputeCapability = string(capability)
		}
	}
	if err != nil {
		return nil, err
	}
	if m.imex != "" {
		text, err := exec.CommandContext(ctx, m.imex, "-v").CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s -v: %w", m.imex, err)
		}
		_, version, _ := strings.Cut(strings.TrimSpace(string(text)), ": ")
		machine.IMEXVersion = version
	}
	return record.Profile(machine)
}

func ask(ctx context.Context, command string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, command, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w (give --xml a file, or --nvidia-smi= on a machine without GPUs)", command, strings.Join(args, " "), err)
	}
	return out, nil
}

func recordCommand() *cobra.Command {
	var m machineFlags
	c := &cobra.Command{
		Use:   "record",
		Short: "Write a profile of this (real) machine, without anything that identifies it",
		Args:  flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := m.read(c.Context())
			if err != nil {
				return err
			}
			text, err := profile.Format(p)
			if err != nil {
				return err
			}
			if _, err := c.OutOrStdout().Write(text); err != nil {
				return err
			}
			if _, err := profile.Parse("the profile", text); err != nil {
				return fmt.Errorf("the machine does not report every field of a profile; add the rest by hand, then fakefabric validate:\n%w", err)
			}
			return nil
		},
	}
	m.add(c)
	c.Flags().StringVar(&m.name, "name", "recorded", "name of the profile")
	return c
}

func compareCommand() *cobra.Command {
	m := machineFlags{name: "recorded"} // is not compared
	var name string
	c := &cobra.Command{
		Use:   "compare --profile NAME|FILE",
		Short: "List where this (real) machine and a profile differ",
		Args:  flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			fake, err := profile.Load(name)
			if err != nil {
				return err
			}
			p, err := m.read(c.Context())
			if err != nil {
				return err
			}
			differences := record.Compare(p, fake)
			for _, d := range differences {
				if _, err := fmt.Fprintln(c.OutOrStdout(), d); err != nil {
					return err
				}
			}
			if len(differences) > 0 {
				return errors.New("differences: " + fmt.Sprint(len(differences)))
			}
			return nil
		},
	}
	m.add(c)
	c.Flags().StringVar(&name, "profile", "", "the profile to compare with")
	mustRequire(c, "profile")
	return c
}
