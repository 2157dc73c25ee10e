package standin

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// given is the view of a pod with eight GPUs and the HCA mlx5_3, made of plain files. nvidia-smi is a script.
func given(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for i := range 8 {
		write(t, filepath.Join(root, fmt.Sprintf("dev/nvidia%d", i)), "")
		for class, node := range map[string]string{"infiniband_verbs": "uverbs", "infiniband_mad": "umad"} {
			write(t, filepath.Join(root, fmt.Sprintf("sys/class/%s/%s%d/ibdev", class, node, i)), fmt.Sprintf("mlx5_%d\n", i))
		}
		write(t, filepath.Join(root, fmt.Sprintf("sys/class/infiniband_mad/issm%d/ibdev", i)), fmt.Sprintf("mlx5_%d\n", i))
	}
	for _, node := range []string{"nvidiactl", "nvidia-uvm", "shm/x", "infiniband/uverbs3", "infiniband/umad3", "infiniband/issm3",
		"infiniband/rdma_cm"} {
		write(t, filepath.Join(root, "dev", node), "")
	}
	write(t, filepath.Join(root, "bin/nvidia-smi"), "#!/bin/sh\nfor i in 0 1 2 3 4 5 6 7; do echo GPU-$i; done\n")
	return root
}

// train runs the job's program on a pod's devices.
func train(t *testing.T, root, hca string) (said string, err error) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on the PATH: the image's program runs in kind only")
	}
	cmd := exec.CommandContext(t.Context(), python, "wdl_8gpu_outbrain.py", root)
	cmd.Env = []string{"PATH=" + filepath.Join(root, "bin") + ":" + os.Getenv("PATH"), "NCCL_IB_HCA=" + hca}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTrainingOpensItsDevices(t *testing.T) {
	for _, hca := range []string{"=mlx5_3:1", ""} {
		said, err := train(t, given(t), hca)
		if err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		var seen struct {
			GPUs, UUIDs, InfiniBand []string
			HCA                     string
		}
		if err := json.Unmarshal([]byte(said), &seen); err != nil {
			t.Fatalf("%v in %s", err, said)
		}
		if len(seen.GPUs) != 8 || len(seen.UUIDs) != 8 || seen.HCA != "mlx5_3" {
			t.Errorf("it saw %+v", seen)
		}
		if diff := cmp.Diff([]string{"issm3", "rdma_cm", "umad3", "uverbs3"}, seen.InfiniBand); diff != "" {
			t.Error(diff)
		}
	}
}

func TestTrainingFailsWithoutARequestedDevice(t *testing.T) {
	add := func(node string) func(*testing.T, string) {
		return func(t *testing.T, root string) { write(t, filepath.Join(root, node), "") }
	}
	remove := func(node string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			if err := os.Remove(filepath.Join(root, node)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := map[string]struct {
		change func(t *testing.T, root string)
		hca    string
		want   string
	}{
		"a GPU too few":         {remove("dev/nvidia7"), "", "7 GPUs in"},
		"a GPU too many":        {add("dev/nvidia8"), "", "9 GPUs in"},
		"no nvidiactl":          {remove("dev/nvidiactl"), "", "nvidiactl: No such file or directory"},
		"no nvidia-smi":         {remove("bin/nvidia-smi"), "", "nvidia-smi --query-gpu=uuid --format=csv,noheader"},
		"another HCA's verbs":   {add("dev/infiniband/uverbs4"), "", "2 HCAs in"},
		"another HCA's umad":    {add("dev/infiniband/umad4"), "", "umad4 is a node of mlx5_4, and the pod's HCA is mlx5_3"},
		"another HCA's issm":    {add("dev/infiniband/issm0"), "", "issm0 is a node of mlx5_0, and the pod's HCA is mlx5_3"},
		"no HCA":                {remove("dev/infiniband/uverbs3"), "", "0 HCAs in"},
		"no rdma_cm":            {remove("dev/infiniband/rdma_cm"), "", "no rdma_cm in"},
		"NCCL told another HCA": {func(*testing.T, string) {}, "=mlx5_4:1", "NCCL_IB_HCA is =mlx5_4:1, and the pod's HCA is mlx5_3"},
		"a driver with one fewer": {func(t *testing.T, root string) {
			write(t, filepath.Join(root, "bin/nvidia-smi"), "#!/bin/sh\necho GPU-0\n")
		}, "", "ends with 0, want 8 GPUs: GPU-0"},
		"a node that is not one": {func(t *testing.T, root string) {
			remove("dev/nvidia2")(t, root)
			add("dev/nvidia2/x")(t, root)
		}, "", "nvidia2: Is a directory"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := given(t)
			test.change(t, root)
			if said, err := train(t, root, test.hca); err == nil || !strings.Contains(said, test.want) {
				t.Errorf("error %v, it said %q, want %q", err, said, test.want)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}
