package plugin

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	nvidiasmi "gpufabric.io/fakes/smi"
)

// resetter resets GPU 0 of a fake machine as an administrator does. NVIDIA's driver resets no GPU that a program has open
// (nvidia-smi(1), --gpu-reset).
func resetter(root string) func() error {
	return func() error {
		var out bytes.Buffer
		return (&nvidiasmi.Command{Root: root, Stdout: &out, Now: time.Now()}).Run([]string{"-i", "0", "--gpu-reset"})
	}
}

// heldBy waits until the description of a node's GPU holders contains want; empty: until nothing holds them.
func heldBy(t *testing.T, shared drain.Directory, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	changes, err := shared.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for {
		all, err := shared.Blockers()
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 && want == "" || len(all) == 1 && want != "" && strings.Contains(all[0].String(), want) {
			return
		}
		select {
		case <-changes:
		case <-ctx.Done():
			t.Fatalf("held by %v, want %q", all, want)
		}
	}
}

func TestPluginSharesNoGPUsWhileDrained(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	root, shared := t.TempDir(), drain.Directory{Path: t.TempDir(), Files: &filewatch.Watcher{}}
	cgroups := t.TempDir()
	occupancytest.New(t, cgroups) // where they are not seen, a pod's share is free only occupancy.Patience after the pod's end
	api := machine(t, "a100-40", root, func(ctx context.Context, o *Options, root string, api *fake.Clientset) error {
		return Run(ctx, o, nvmlstate.New(root), api)
	}, "--kubelet-root="+kubelet.Root(), "--drain-dir="+shared.Path, "--cgroup-root="+cgroups,
		"--device-split-count=10", "--gpu-memory-factor=10")
	reset := resetter(root)
	n := &node{t: t, api: api, kubelet: kubelet, ended: make(chan error)}
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 80)
	p, err := profile.Load("a100-40")
	if err != nil {
		t.Fatal(err)
	}
	share := p.Node(0).GPUs[0].UUID + ",NVIDIA,1024,0:;"
	n.schedule("first", share, "main")
	n.allocate("volcano.sh/vgpu-number", 1)
	if err := reset(); err == nil {
		t.Error("the GPU was reset while the role has NVML open")
	}
	if err := shared.Set(drain.Draining); err != nil {
		t.Fatal(err)
	}
	heldBy(t, shared, "default/first")
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 0)
	// After the drain was given up, it shares GPUs as before.
	if err := shared.Set(drain.None); err != nil {
		t.Fatal(err)
	}
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 80)
	if err := shared.Set(drain.Draining); err != nil {
		t.Fatal(err)
	}
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 0)
	if err := api.CoreV1().Pods("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	heldBy(t, shared, "")
	if err := reset(); err != nil {
		t.Errorf("the GPU of a drained node could not be reset: %v", err)
	}
	if err := shared.Set(drain.None); err != nil {
		t.Fatal(err)
	}
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 80)
	n.schedule("second", share, "main")
	n.allocate("volcano.sh/vgpu-number", 1)
}

// The monitor reads files of tenants. It has no device and no part of the driver, and holds no GPU of a drained node.
func TestMonitorDoesNotOpenGPUs(t *testing.T) {
	address, root := free(t), t.TempDir()
	machine(t, "l40s-8", root, func(ctx context.Context, o *Options, _ string, api *fake.Clientset) error {
		return RunMonitor(ctx, o, false, api)
	}, "--metrics-address="+address, "--dev-root="+t.TempDir(), "--driver-root="+t.TempDir())
	scrape(t, address, "gpufabric_vgpu_plugin_answers 0")
	if err := resetter(root)(); err != nil {
		t.Errorf("the GPU could not be reset: %v", err)
	}
}
