package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// cdiSpec is the part of a CDI specification that is compared.
type cdiSpec struct {
	Kind    string `json:"kind"`
	Devices []struct {
		Name  string   `json:"name"`
		Edits cdiEdits `json:"containerEdits"`
	} `json:"devices"`
	Edits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	DeviceNodes []struct {
		Path string `json:"path"`
	} `json:"deviceNodes"`
	Mounts []struct {
		ContainerPath string `json:"containerPath"`
	} `json:"mounts"`
}

func (e cdiEdits) node(path string) bool {
	for _, d := range e.DeviceNodes {
		if d.Path == path {
			return true
		}
	}
	return false
}

func (e cdiEdits) mounts(base string) bool {
	for _, m := range e.Mounts {
		if filepath.Base(m.ContainerPath) == base {
			return true
		}
	}
	return false
}

func TestNvidiaCTKDescribesTheNode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: nvidia-ctk takes nothing but device nodes, which only root can make")
	}
	program := peer(t, "nvidia-ctk")
	for _, name := range withGPUs(t) {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			out, _ := n.run(t, program, "cdi", "generate", "--mode=nvml", "--driver-root="+filepath.Join(n.root, "driver"), "--dev-root=/",
				"--device-name-strategy=uuid")
			var spec cdiSpec
			if err := yaml.Unmarshal([]byte(out), &spec); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			minors := map[string]int{}
			for _, g := range n.GPUs {
				minors[g.UUID] = g.Minor
			}
			for _, d := range spec.Devices {
				if minor, ok := minors[d.Name]; ok && d.Edits.node(fmt.Sprintf("/dev/nvidia%d", minor)) {
					delete(minors, d.Name)
				}
			}
			if len(minors) > 0 || spec.Kind != "nvidia.com/gpu" {
				t.Errorf("kind %q; without their device nodes: %v\n%s", spec.Kind, minors, out)
			}
			if !spec.Edits.node("/dev/nvidiactl") || !spec.Edits.mounts("libcuda.so."+n.Profile.Driver.Version) || !spec.Edits.mounts("nvidia-smi") {
				t.Errorf("the control device, libcuda or nvidia-smi is missing:\n%s", out)
			}
		})
	}
}
