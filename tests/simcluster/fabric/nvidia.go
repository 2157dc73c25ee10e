package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gpufabric.io/tests/simcluster/simnode"
)

// NVIDIARepository is the image of NVIDIA's DRA driver.
const NVIDIARepository = "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu"

// besideNVIDIA runs the GPU kubelet plugin of NVIDIA's DRA driver in containers of its image, and gpufabric's programs in those of ours.
type besideNVIDIA struct {
	*processes
	program string
}

var _ simnode.Runtime = (*besideNVIDIA)(nil)

// WithNVIDIA adds the GPU kubelet plugin of NVIDIA's DRA driver, whose program is at the path. Driver roots get a dev, where it looks for
// device nodes.
func (s Setup) WithNVIDIA(program string) (Setup, error) {
	ours, ok := s.Runtime.(*processes)
	if !ok {
		return Setup{}, fmt.Errorf("the containers of NVIDIA's DRA driver run as %s alone", AsProcesses)
	}
	s.Runtime = &besideNVIDIA{processes: ours, program: program}
	return s.WithDriverDevices(), nil
}

// WithDriverDevices gives driver roots a dev, where NVIDIA's plugins look for device nodes.
func (s Setup) WithDriverDevices() Setup {
	render := s.Hardware
	s.Hardware = func(ctx context.Context, index int, dir string) ([]simnode.Mapping, map[string]string, error) {
		mappings, labels, err := render(ctx, index, dir)
		if err != nil {
			return nil, nil, err
		}
		if err := os.Symlink("../dev", filepath.Join(HardwareOf(dir), "driver/dev")); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, nil, fmt.Errorf("link the devices into the driver root: %w", err)
		}
		return mappings, labels, nil
	}
	return s
}

func (b *besideNVIDIA) Owns(image string) bool {
	return imageOf(image, NVIDIARepository) || b.processes.Owns(image)
}

// Run runs NVIDIA's plugin for the container gpus of its chart. The init container only looks for the driver, which is there.
func (b *besideNVIDIA) Run(ctx context.Context, container simnode.Container) error {
	switch {
	case !imageOf(container.Image, NVIDIARepository):
		return b.processes.Run(ctx, container)
	case container.Name == "init-container":
		return nil
	case container.Name != "gpus":
		return fmt.Errorf("container %s of NVIDIA's DRA driver is not simulated: only its GPU plugin is", container.Name)
	}
	kubeconfig, err := writeKubeconfig(container)
	if err != nil {
		return err
	}
	root, mounted := container.Real("/driver-root")
	sysfs, kernel := container.Real("/sys")
	if !mounted || !kernel {
		return errors.New("the container of NVIDIA's GPU plugin has no /driver-root or no /sys")
	}
	// CDI specs have paths of the node, which are this machine's here.
	container.Env["NVIDIA_DRIVER_ROOT"], container.Env["DRIVER_ROOT_CTR_PATH"] = root, root
	container.Env["NVIDIA_DRA_SYSFS_ROOT"] = sysfs
	return runProcess(ctx, container, kubeconfig, b.program, "-v="+container.Env["LOG_VERBOSITY"])
}
