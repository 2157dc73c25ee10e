package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
)

// partitionGPU makes the smallest MIG device on an idle GPU, checks its capability nodes, and removes it.
func partitionGPU(_ context.Context, m *machine) result {
	if m.node == nil {
		return result{state: failed, text: errNoNVML.Error()}
	}
	var busy []string
	for _, g := range slices.Backward(m.node.GPUs) { // the first GPU is the likeliest to be in use
		if g.MIG == nil {
			continue
		}
		processes, r := g.Handle.GetComputeRunningProcesses()
		standing, err := partition.List(g)
		switch {
		case r != nvml.SUCCESS:
			return refused(fmt.Errorf("list the processes of GPU %d: %w", g.Index, r))
		case err != nil:
			return refused(err)
		case len(processes) > 0:
			busy = append(busy, fmt.Sprintf("GPU %d is used by process %d", g.Index, processes[0].Pid))
		case len(standing) > 0:
			busy = append(busy, fmt.Sprintf("GPU %d has MIG instances", g.Index))
		default:
			return m.partition(g)
		}
	}
	if len(busy) > 0 {
		return result{state: absent, text: "no GPU is free for this:", more: busy}
	}
	return missing("no GPU can be partitioned")
}

// partition works on an idle GPU, and leaves its mode unchanged.
func (m *machine) partition(g *inventory.GPU) (res result) {
	current, pending, r := g.Handle.GetMigMode()
	if r != nvml.SUCCESS {
		return refused(fmt.Errorf("ask GPU %d for its MIG mode: %w", g.Index, r))
	}
	// The driver's nvidia-modprobe makes capability nodes, and their directory with the first, and never removes one.
	directory := filepath.Join(m.at.Dev.Path, "nvidia-caps")
	caps := filepath.Join(directory, "nvidia-cap*")
	before, _ := filepath.Glob(caps) // the pattern is a good one
	_, err := os.Lstat(directory)
	bare := errors.Is(err, fs.ErrNotExist)
	defer func() {
		after, _ := filepath.Glob(caps)
		for _, node := range after {
			if slices.Contains(before, node) {
				continue
			}
			if err := os.Remove(node); err != nil && res.state == ok {
				res = refused(fmt.Errorf("the capability node %s is left: %w", node, err))
			}
		}
		if !bare {
			return
		}
		if err := os.Remove(directory); err != nil && !errors.Is(err, fs.ErrNotExist) && res.state == ok {
			res = refused(fmt.Errorf("the directory of capability nodes is left: %w", err))
		}
	}()
	if current == nvml.DEVICE_MIG_DISABLE {
		defer func() {
			if err := restoreMode(g, current, pending); err != nil && (res.state == ok || res.state == absent) {
				res = refused(err)
			}
		}()
		activation, r := g.Handle.SetMigMode(nvml.DEVICE_MIG_ENABLE)
		if r != nvml.SUCCESS {
			return refused(fmt.Errorf("switch MIG on at GPU %d: %w", g.Index, r))
		}
		// Before Hopper the mode changes with a reset, which is not this program's to do.
		if now, _, r := g.Handle.GetMigMode(); r != nvml.SUCCESS || now != nvml.DEVICE_MIG_ENABLE {
			return missing("MIG mode of GPU %d changes with its next reset only, and was put back (switching it on said: %v)", g.Index, activation)
		}
	}
	if len(g.MIG.Profiles) == 0 {
		return result{state: failed, text: fmt.Sprintf("GPU %d has MIG and no profile", g.Index)}
	}
	smallest := slices.MinFunc(g.MIG.Profiles, func(a, b inventory.Profile) int { return a.Slices - b.Slices })
	if len(smallest.Placements) == 0 {
		return result{state: failed, text: fmt.Sprintf("GPU %d has no placement for %s", g.Index, smallest.Name)}
	}
	at := smallest.Placements[0]
	made, err := partition.Create(g, smallest, at)
	if err != nil {
		return refused(fmt.Errorf("make %s at %d on GPU %d: %w", smallest.Name, at.Start, g.Index, err))
	}
	nodes, nodeErr := edits.Capabilities{ProcRoot: m.proc, DevRoot: m.at.Dev.Path}.Nodes(g.Minor, made.ID, made.Compute)
	if err := partition.Destroy(g, smallest, at.Start); err != nil {
		return refused(fmt.Errorf("%s on GPU %d was made and cannot be destroyed: %w", made.UUID, g.Index, err))
	}
	if nodeErr != nil {
		return refused(fmt.Errorf("%s on GPU %d: its capability nodes: %w", smallest.Name, g.Index, nodeErr))
	}
	var names []string
	for _, n := range nodes {
		names = append(names, filepath.Base(n.Path))
	}
	return fine("%s at %d on GPU %d was %s with %s, and is gone", smallest.Name, at.Start, g.Index, made.UUID, strings.Join(names, " and "))
}

// restoreMode restores a GPU's MIG mode, also one that only waits for a reset.
func restoreMode(g *inventory.GPU, current, pending int) error {
	if _, r := g.Handle.SetMigMode(pending); r != nvml.SUCCESS {
		return fmt.Errorf("MIG mode of GPU %d cannot be put back to %d (nvidia-smi -i %d -mig %d): %w", g.Index, pending, g.Index, pending, r)
	}
	nowCurrent, nowPending, r := g.Handle.GetMigMode()
	if r != nvml.SUCCESS || nowCurrent != current || nowPending != pending {
		return fmt.Errorf("MIG mode of GPU %d was %d (%d after a reset) and is %d (%d after a reset): %w", g.Index, current, pending, nowCurrent,
			nowPending, r)
	}
	return nil
}
