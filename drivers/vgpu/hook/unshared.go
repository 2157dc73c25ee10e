package hook

import (
	"path/filepath"

	"github.com/containerd/nri/pkg/api"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Unshared names the CDI device that an allocation gives a container whose share the hook will provide. The device mounts a file
// that does not exist, so the container cannot start; the hook removes the mount. A container runtime drops a hook that does not
// answer in time (containerd: 2 s, plugin_request_timeout) and makes the container without it: that container would run without its
// GPUs. This way it fails to start, and the kubelet makes it again.
const Unshared = "unshared"

// unsharedMount is the mount's path in the container.
const unsharedMount = "/run/gpufabric/share"

// unsharedSource is the file that does not exist; the runtime's error shows its name.
const unsharedSource = "no-share-was-given-because-NRI-did-not-reach-vgpu-plugin"

// UnsharedEdits are the edits of the device Unshared. stateDir has no file of the mount's name, and no tenant can write to it.
func UnsharedEdits(stateDir string) specs.ContainerEdits {
	return specs.ContainerEdits{Mounts: []*specs.Mount{{
		HostPath: filepath.Join(stateDir, unsharedSource), ContainerPath: unsharedMount, Options: []string{"ro", "nosuid", "nodev", "bind"},
	}}}
}

// shared lets the container start.
func shared(adjustment *api.ContainerAdjustment) { adjustment.RemoveMount(unsharedMount) }
