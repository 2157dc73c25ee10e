package node

import (
	"fmt"

	"gpufabric.io/drivers/node/seccomp"
)

// Confinement returns the rules for a role that the chart runs privileged; false for other roles. The container runtime gives a
// privileged container no seccomp profile, so the role confines itself.
func Confinement(role string) (seccomp.Rules, bool) {
	switch role {
	case "compute-domain-plugin": // uses NVML
		return seccomp.Rules{}, true
	case "gpu-plugin", "mps-keeper": // start programs of the driver in roots of their own
		return seccomp.Rules{Mounts: true}, true
	case "vgpu-plugin": // mounts directories of bounded size for tenants
		return seccomp.Rules{Mounts: true}, true
	case "rdma-plugin": // moves interfaces into pods' network namespaces
		return seccomp.Rules{Join: true}, true
	}
	return seccomp.Rules{}, false
}

// Confine applies its role's rules to this process, unless it already has a filter: the container runtime's, or that of the role
// that started it.
func Confine(args ...string) error {
	if len(args) == 0 {
		return nil
	}
	rules, ok := Confinement(args[0])
	if !ok {
		return nil
	}
	filtered, err := seccomp.Filtered()
	if err != nil || filtered {
		return err
	}
	if err := rules.Process(); err != nil {
		return fmt.Errorf("confine %s: %w", args[0], err)
	}
	return nil
}
