package hook

import (
	"path/filepath"

	"github.com/containerd/nri/pkg/api"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Unshared names the CDI device that an allocation gives a container whose share the hook is to bring. The device mounts what does not
// exist, so the container cannot start; the hook takes the mount away. A container runtime drops a hook that does not answer within its
// time (containerd: 2 s, plugin_request_timeout) and makes the container without it: that container would run without its GPUs. This way
// it fails to start, and the kubelet has it made again.
const Unshared = "unshared"

// unsharedMount is where the mount would be in the container.
const unsharedMount = "/run/gpufabric/share"

// unsharedSource is the file that does not exist; its name is what the runtime's error shows.
const unsharedSource = "no-share-was-given-because-NRI-did-not-reach-vgpu-plugin"

// UnsharedEdits is what the device Unshared does. In stateDir, which no tenant can write to, nothing has the mount's name.
func UnsharedEdits(stateDir string) specs.ContainerEdits {
	return specs.ContainerEdits{Mounts: []*specs.Mount{{
		HostPath: filepath.Join(stateDir, unsharedSource), ContainerPath: unsharedMount, Options: []string{"ro", "nosuid", "nodev", "bind"},
	}}}
}

// shared lets the container start.
func shared(adjustment *api.ContainerAdjustment) { adjustment.RemoveMount(unsharedMount) }
