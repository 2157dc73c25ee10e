package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/edits"
)

// findEdits finds the edits for a container with each GPU, and checks every file in them.
func findEdits(_ context.Context, m *machine) result {
	if m.node == nil {
		return result{state: failed, text: errNoNVML.Error()}
	}
	set, err := edits.Find(m.node, edits.Options{NVML: m.library, DriverRoot: m.at.Root.Path, DevRoot: m.at.Dev.Path,
		ProcDevices: filepath.Join(m.proc, "devices"), Log: logr.Discard()})
	if err != nil {
		return refused(err)
	}
	all := []specs.ContainerEdits{set.Common()}
	for _, g := range m.node.GPUs {
		all = append(all, set.GPU(g))
	}
	problems, mounts, nodes := sentences(set.Problems), 0, 0
	for _, e := range all {
		for _, mount := range e.Mounts {
			mounts++
			if _, err := os.Stat(mount.HostPath); err != nil {
				problems = append(problems, fmt.Sprintf("mount %s: %v", mount.ContainerPath, err))
			}
		}
		for _, n := range e.DeviceNodes {
			nodes++
			path := n.HostPath
			if path == "" {
				path = n.Path
			}
			info, err := os.Stat(path)
			switch {
			case errors.Is(err, fs.ErrNotExist) && n.Path == "/dev/nvidia-modeset" && n.Major > 0:
				// The host of a GPU without a display need not have it. The container runtime makes it by its number.
			case err != nil:
				problems = append(problems, fmt.Sprintf("device node %s: %v", n.Path, err))
			case info.Mode()&os.ModeCharDevice == 0:
				problems = append(problems, fmt.Sprintf("device node %s: %s is no character device", n.Path, path))
			}
		}
	}
	if len(problems) > 0 {
		return result{state: failed, text: fmt.Sprintf("of %d mounts and %d device nodes:", mounts, nodes), more: problems}
	}
	return fine("%d mounts and %d device nodes for %d GPUs, all there or made by their numbers", mounts, nodes, len(m.node.GPUs))
}
