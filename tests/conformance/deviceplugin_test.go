package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestDevicePluginListsAndAllocatesEveryGPU(t *testing.T) {
	program := peer(t, "nvidia-device-plugin")
	for _, name := range withGPUs(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			n := newNode(t, name)
			k := newKubelet(t, n)
			n.start(t, nil, program, "--pass-device-specs")
			r := k.await(ctx, t)
			if r.name != "nvidia.com/gpu" {
				t.Fatalf("it registered %s", r.name)
			}
			want, got := map[string]string{}, map[string]string{}
			for _, g := range n.GPUs {
				want[g.UUID] = fmt.Sprintf("Healthy on NUMA node %d", g.NUMA)
			}
			for _, d := range r.devices {
				where := -1
				if nodes := d.GetTopology().GetNodes(); len(nodes) > 0 {
					where = int(nodes[0].ID)
				}
				got[d.ID] = fmt.Sprintf("%s on NUMA node %d", d.Health, where)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-profile +device plugin:\n%s", diff)
			}
			for _, g := range n.GPUs {
				given := r.allocate(ctx, t, g.UUID)
				if visible := given.Envs["NVIDIA_VISIBLE_DEVICES"]; visible != g.UUID {
					t.Errorf("%s was asked for, and %q given", g.UUID, visible)
				}
				var paths []string
				for _, d := range given.Devices {
					paths = append(paths, d.HostPath)
				}
				own := fmt.Sprintf("/dev/nvidia%d", g.Minor)
				if !slices.Contains(paths, own) || !slices.Contains(paths, "/dev/nvidiactl") || !slices.Contains(paths, "/dev/nvidia-uvm") {
					t.Errorf("%s came with %v; %s, /dev/nvidiactl and /dev/nvidia-uvm belong to it", g.UUID, paths, own)
				}
			}
		})
	}
}

func TestDevicePluginListsMIGDevices(t *testing.T) {
	program := peer(t, "nvidia-device-plugin")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n := newNode(t, "a100-40")
	smi := filepath.Join(n.root, "driver/usr/bin/nvidia-smi")
	n.run(t, smi, "-i", "0", "-mig", "1")
	n.run(t, smi, "-i", "0", "--gpu-reset") // until then the mode of an A100 is pending
	n.run(t, smi, "mig", "-i", "0", "-cgi", "3g.20gb,1g.5gb,1g.5gb", "-C")
	list, _ := n.run(t, smi, "-L")

	k := newKubelet(t, n)
	n.start(t, nil, program, "--mig-strategy=mixed")
	got := map[string]int{}
	for range 3 {
		r := k.await(ctx, t)
		got[r.name] = len(r.devices)
		for _, d := range r.devices {
			if !strings.Contains(list, d.ID) {
				t.Errorf("%s of %s is not in nvidia-smi -L:\n%s", d.ID, r.name, list)
			}
			if visible := r.allocate(ctx, t, d.ID).Envs["NVIDIA_VISIBLE_DEVICES"]; visible != d.ID {
				t.Errorf("%s was asked for, and %q given", d.ID, visible)
			}
		}
	}
	want := map[string]int{"nvidia.com/gpu": len(n.GPUs) - 1, "nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-1g.5gb": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-made +listed:\n%s", diff)
	}
}
