package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// testAlignedPair gives a pod a GPU and the nearest NIC through DRA, then takes the NIC's link down and up again.
func testAlignedPair(t *testing.T, e *environment) {
	const pod = "gpu-with-nic"
	e.apply(t, e.file(t, "examples/manifests/rdma-gpu-aligned.yaml"))
	node := e.ready(t, pod)[0]
	inside := strings.Fields(e.kubectl(t, "exec", pod, "--", "sh", "-c",
		`ls /dev | grep -E '^nvidia[0-9]+$'; ls /dev/infiniband; echo "$NCCL_IB_HCA"`))
	var gpu, nic string
	for _, word := range inside {
		if number, ok := strings.CutPrefix(word, "nvidia"); ok {
			gpu += number
		}
		if name, ok := strings.CutPrefix(word, "="); ok {
			nic, _, _ = strings.Cut(name, ":")
		}
	}
	if count := strings.Count(strings.Join(inside, " "), "uverbs"); len(gpu) != 1 || nic == "" || count != 1 {
		t.Fatalf("the pod sees %q, want one GPU, one uverbs and the NIC's name", inside)
	}
	if path := e.path(t, node, "GPU"+gpu, nic); path != "PIX" && path != "PXB" {
		t.Errorf("GPU %s and %s are %s apart, want PIX or PXB: one PCIe switch", gpu, nic, path)
	}
	e.inject(t, node, "port-down", "device="+nic)
	e.eventually(t, "the NIC's device to be tainted", func(ctx context.Context) (bool, string, error) {
		got, err := e.portTaints(ctx, node)
		return len(got) == 1 && strings.HasPrefix(got[0], "rdma.gpufabric.io/port-down="), fmt.Sprint(got), err
	})
	e.inject(t, node, "port-up", "device="+nic)
	e.eventually(t, "the taint to go", func(ctx context.Context) (bool, string, error) {
		got, err := e.portTaints(ctx, node)
		return len(got) == 0, fmt.Sprint(got), err
	})
	e.kubectl(t, "delete", "pod/"+pod, "--grace-period=1", inTime)
}

// path is nvidia-smi's word for the path between a GPU and a NIC of a node.
func (e *environment) path(t *testing.T, node, gpu, nic string) string {
	t.Helper()
	out, err := e.smi(t.Context(), node, "topo", "-m")
	must(t, err)
	column := ""
	for line := range strings.Lines(out) {
		if name, device, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && device == nic {
			column = name
		}
	}
	var header []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch {
		case slices.Contains(fields, "GPU0") && slices.Contains(fields, "NIC0") && header == nil:
			header = fields
		case len(fields) > 0 && fields[0] == gpu && header != nil:
			if i := slices.Index(header, column); i >= 0 && i+1 < len(fields) {
				return fields[i+1]
			}
		}
	}
	t.Fatalf("no way between %s and %s (%s) in\n%s", gpu, nic, column, out)
	return ""
}

// portTaints lists "key=value:effect" of a node's RDMA devices.
func (e *environment) portTaints(ctx context.Context, node string) ([]string, error) {
	out, err := e.Kubectl(ctx, nil, "get", "resourceslices", "--field-selector", "spec.driver=rdma.gpufabric.io,spec.nodeName="+node,
		"--output", `jsonpath={range .items[*].spec.devices[*].taints[*]}{.key}={.value}:{.effect}{"\n"}{end}`)
	return strings.Fields(out), err
}
