package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/record"
)

// compareProfile records the machine as a fake's profile, and lists the differences from the fake of its model.
func compareProfile(ctx context.Context, m *machine) result {
	report, err := m.smi(ctx, "-q", "-x")
	if err != nil {
		return refused(err)
	}
	capability, err := m.smi(ctx, "--query-gpu=compute_cap", "--format=csv,noheader")
	if err != nil {
		return refused(err)
	}
	recorded, err := record.Profile(record.Machine{Name: "recorded", SMI: []byte(report), ComputeCapability: capability, Sysfs: m.sys})
	if err != nil {
		return refused(fmt.Errorf("record this machine: %w", err))
	}
	text, err := profile.Format(recorded)
	if err != nil {
		return refused(err)
	}
	if err := m.keep("nvidia-smi.xml", []byte(report)); err != nil {
		return refused(err)
	}
	if err := m.keep("profile.yaml", text); err != nil {
		return refused(err)
	}
	if recorded.GPUs == nil {
		return result{state: failed, text: "nvidia-smi -q -x names no GPU"}
	}
	name, fake, err := shipped(recorded.GPUs.Model.Name)
	if err != nil {
		return refused(err)
	}
	if fake == nil {
		return missing("no fake is of model %q; -out keeps a profile to make one of", recorded.GPUs.Model.Name)
	}
	var lines []string
	for _, d := range record.Compare(recorded, fake) {
		lines = append(lines, d.String())
	}
	return result{state: ok, text: fmt.Sprintf("%d differences from the fake %s", len(lines), name), more: lines}
}

// shipped finds the fake of a model; nil: none.
func shipped(model string) (string, *profile.Profile, error) {
	for _, name := range profile.Names() {
		p, err := profile.Load(name)
		if err != nil {
			return "", nil, err
		}
		if p.GPUs != nil && strings.EqualFold(p.GPUs.Model.Name, model) {
			return name, p, nil
		}
	}
	return "", nil, nil
}

// keep writes a file with a result, where that is wanted.
func (m *machine) keep(name string, text []byte) error {
	if m.out == "" {
		return nil
	}
	if err := os.MkdirAll(m.out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.out, name), text, 0o644)
}
