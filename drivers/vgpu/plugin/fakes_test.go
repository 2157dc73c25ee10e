package plugin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/build/port"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// machine renders a fake machine and starts a role on it. l40s-8 is the machine of the public article on vGPU sharing.
func machine(t *testing.T, name, root string, run func(context.Context, *Options, string, *fake.Clientset) error,
	flags ...string) *fake.Clientset {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	return machineAt(t, root, run, flags...)
}

// machineAt starts a role on a machine that was rendered at root.
func machineAt(t *testing.T, root string, run func(context.Context, *Options, string, *fake.Clientset) error,
	flags ...string) *fake.Clientset {
	t.Helper()
	var o Options
	set := pflag.NewFlagSet("vgpu-plugin", pflag.ContinueOnError)
	o.Bind(set, func(string) string { return "" })
	if err := set.Parse(append([]string{
		"--node-name=" + nodeName, "--driver-root=" + root + "/driver", "--sysfs-root=" + root + "/sys", "--dev-root=" + root + "/dev",
		"--proc-devices=" + root + "/proc/devices", "--cdi-root=" + t.TempDir(), "--state-dir=" + t.TempDir(), "--handover-dir=", "--nri-socket=",
	}, flags...)); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &o, root, api) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the role ended with %v", err)
		}
	})
	return api
}

func TestPluginCountsTheGPUsOfAnL40SNode(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	machine(t, "l40s-8", t.TempDir(), func(ctx context.Context, o *Options, root string, api *fake.Clientset) error {
		return Run(ctx, o, nvmlstate.New(root), api)
	}, "--kubelet-root="+kubelet.Root(), "--device-split-count=10", "--gpu-memory-factor=10")
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 80)
	kubelet.AwaitAllocatable("volcano.sh/vgpu-memory", 8*(46068/10)) // 39312 with ECC off, as package decks shows
	kubelet.AwaitAllocatable("volcano.sh/vgpu-cores", 800)
}

// TestEightOfTheLargestGPUsRegisterWithDefaults uses a kubelet whose gRPC refuses messages over 4 MiB, as the real one does.
func TestEightOfTheLargestGPUsRegisterWithDefaults(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	api := machine(t, "b200-hgx", t.TempDir(), func(ctx context.Context, o *Options, root string, api *fake.Clientset) error {
		return Run(ctx, o, nvmlstate.New(root), api)
	}, "--kubelet-root="+kubelet.Root())
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 80)
	kubelet.AwaitAllocatable("volcano.sh/vgpu-memory", 8*(183359/16))
	(&node{t: t, api: api, ended: make(chan error)}).annotation(unitAnnotation,
		func(got string) bool { return got == "1 volcano.sh/vgpu-memory = 16 MiB" })
}

func TestMonitorShowsLimitsFromAllocationOn(t *testing.T) {
	address := free(t)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	api := machine(t, "l40s-8", t.TempDir(), func(ctx context.Context, o *Options, root string, api *fake.Clientset) error {
		watches := *o
		watches.MetricsAddress = address
		return together(ctx,
			func(ctx context.Context) error { return Run(ctx, o, nvmlstate.New(root), api) },
			func(ctx context.Context) error { return RunMonitor(ctx, &watches, false, api) })
	}, "--kubelet-root="+kubelet.Root(), "--gpu-memory-factor=10")
	n := &node{t: t, api: api}
	uuid := scrape(t, address, `HostGPUMemoryUsage{deviceidx="3",deviceuuid="`)
	n.schedule("test1", uuid+",NVIDIA,1024,50:;", "main")
	scrape(t, address, fmt.Sprintf(`vGPU_device_memory_limit_in_bytes{ctrname="main",deviceuuid="%s",podname="test1",`+
		`podnamespace="default",vdeviceid="0",zone="vGPU"} 1.073741824e+10`, uuid))
}

// scrape scrapes the monitor until a line has the given prefix, and returns the rest of that line up to a quote. The monitor starts
// in the background and is notified of pods through a watch; the test's own deadline bounds the wait.
func scrape(t *testing.T, address, begins string) string {
	t.Helper()
	for t.Context().Err() == nil {
		response, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			continue // it does not listen yet
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if after, found := strings.CutPrefix(line, begins); found {
				value, _, _ := strings.Cut(after, `"`)
				return value
			}
		}
	}
	t.Fatalf("no line begins with %s", begins)
	return ""
}

func free(t *testing.T) string {
	t.Helper()
	ports, err := port.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// A GPU without its device nodes is not shared. A driver container, or nvidia-modprobe, may make them after the role has started.
func TestDeviceNodesThatComeLateAreGivenToContainers(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	root := t.TempDir()
	var options *Options
	machine(t, "l40s-8", root, func(ctx context.Context, o *Options, root string, api *fake.Clientset) error {
		options = o
		if err := fault.Apply(root, "uvm-unload", nil); err != nil {
			return err
		}
		return Run(ctx, o, nvmlstate.New(root, nvmlstate.ReadOnlyDev), api)
	}, "--kubelet-root="+kubelet.Root(), "--device-split-count=10", "--gpu-memory-factor=10", "--own-dev=")
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 0)
	if err := fault.Apply(root, "uvm-load", nil); err != nil {
		t.Fatal(err)
	}
	kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 80)
	specs, err := filepath.Glob(filepath.Join(options.CDIRoot, "*.json"))
	if err != nil || len(specs) != 1 {
		t.Fatalf("CDI specs %v, %v", specs, err)
	}
	text, err := os.ReadFile(specs[0])
	if err != nil || !strings.Contains(string(text), "/dev/nvidia-uvm") {
		t.Errorf("the spec names no /dev/nvidia-uvm: %v", err)
	}
}

// A node whose driver is being upgraded: the role answers its probes and shares no GPU.
func TestPluginWaitsForTheDriver(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	address, root := free(t), t.TempDir()
	driver := filepath.Join(root, "driver")
	machine(t, "l40s-8", root, func(ctx context.Context, o *Options, _ string, api *fake.Clientset) error {
		if err := os.Rename(driver, driver+".gone"); err != nil {
			return err
		}
		return Run(ctx, o, nvml.Load(o.Driver()), api)
	}, "--kubelet-root="+kubelet.Root(), "--device-split-count=10", "--gpu-memory-factor=10", "--metrics-address="+address)
	for {
		response, err := http.Get("http://" + address + "/healthz")
		if err != nil && t.Context().Err() == nil {
			continue // it does not listen yet
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("the role is restarted for want of a driver: %s", response.Status)
		}
		break
	}
	if view := kubelet.View("volcano.sh/vgpu-number"); view.Registrations > 0 {
		t.Errorf("shares without a driver: %+v", view)
	}
}
