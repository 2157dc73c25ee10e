package plugin

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/drivers/vgpu/sharedgpus"
	"gpufabric.io/fakes/cgrouptest"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

func TestAllocateGivesTheLibraryAndTheLimits(t *testing.T) {
	program, err := exec.LookPath("true") // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, "--gpu-memory-factor=10", "--limiter-library="+program)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	n.annotation(annotation.Limits, func(by string) bool { return by == string(injection.Library) })
	uuid := n.machine.GPUs[1].UUID
	n.schedule("train", uuid+",NVIDIA,1024,50:;", "main")
	_, response := n.allocate("volcano.sh/vgpu-number", 1)
	host := map[string]string{}
	for _, m := range response.Mounts {
		host[m.ContainerPath] = m.HostPath
	}
	if host["/usr/local/vgpu/libvgpu.so"] != filepath.Join(n.options.StateDir, "lib/libvgpu.so") {
		t.Errorf("mounts %v", host)
	}
	for path, want := range map[string]string{"/etc/ld.so.preload": "/usr/local/vgpu/libvgpu.so\n",
		"/usr/local/vgpu/limits": "gpufabric-limits 1\n" + uuid + " 10737418240 50\n"} {
		if content, err := os.ReadFile(host[path]); err != nil || string(content) != want {
			t.Errorf("%s is %q (%v), want %q", path, content, err, want)
		}
	}
	if pod := n.phase("train", annotation.BindSuccess); pod.Annotations[annotation.Limits] != "main=library" {
		t.Errorf("annotations %v", pod.Annotations)
	}
}

func TestPluginRejectsABackendThatTheNodeLacks(t *testing.T) {
	o := Options{Limits: string(injection.Library), LimiterLibrary: filepath.Join(t.TempDir(), "missing")}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--limiter-library") {
		t.Errorf("got %v", err)
	}
}

func TestContainersAreCountedByLimiter(t *testing.T) {
	book := &holdings.Book{}
	for id, by := range map[string]string{"a": "library", "b": "library", "c": ""} {
		if err := book.Hold(&sharedgpus.Set{}, holdings.Holder{ID: id, Limits: by}, nil); err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newLimited(book))
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%v (%v)", families, err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if len(got) != 2 || got["library"] != 2 || got["unknown"] != 1 {
		t.Errorf("%v", got)
	}
}

// runNative starts the role on eight L40S with a driver of this version, with the kernel's cgroups as a privileged container sees
// them.
func runNative(t *testing.T, driver string, flags ...string) *node {
	t.Helper()
	mount, path := cgrouptest.Make(t)
	p, err := profile.Load("l40s-8")
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.Version = driver
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(root, "proc/self/cgroup")
	if err := errors.Join(os.MkdirAll(filepath.Dir(self), 0o755),
		os.WriteFile(self, []byte("0::/"+filepath.Base(path)+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("true") // any ELF file will do for the library
	if err != nil {
		t.Fatal(err)
	}
	kubelet := kubelettest.New(t)
	kubelet.Start()
	ended := make(chan error, 1)
	api := machineAt(t, root, func(ctx context.Context, o *Options, root string, api *fake.Clientset) error {
		err := Run(ctx, o, nvmlstate.New(root), api)
		ended <- err
		return err
	}, append([]string{"--kubelet-root=" + kubelet.Root(), "--cgroup-root=" + mount, "--limiter-library=" + program,
		"--nri-socket=" + filepath.Join(t.TempDir(), "nri.sock")}, flags...)...)
	return &node{t: t, api: api, ended: ended}
}

// The node's annotation names it: the driver has priority over the library, which is used where the driver cannot limit memory.
func TestPluginChoosesTheBestBackendOfTheDriver(t *testing.T) {
	for name, test := range map[string]struct {
		driver string
		flags  []string
		want   injection.Backend
	}{
		"r615":                            {"615.10", nil, injection.Native},
		"r615 asked for":                  {"615.10", []string{"--limits=native"}, injection.Native},
		"r615 and the library asked for":  {"615.10", []string{"--limits=library"}, injection.Library},
		"r570":                            {"570.158.01", nil, injection.Library},
		"r615 without NRI":                {"615.10", []string{"--nri-socket="}, injection.Library},
		"r615 and more promised than had": {"615.10", []string{"--device-memory-scaling=2"}, injection.Library},
		"r615 without a cgroup v2 here":   {"615.10", []string{"--cgroup-root=/"}, injection.Library},
	} {
		t.Run(name, func(t *testing.T) {
			runNative(t, test.driver, append([]string{"--gpu-memory-factor=100"}, test.flags...)...).annotation(annotation.Limits,
				func(by string) bool {
					if by != "" && by != string(test.want) {
						t.Fatalf("the node says %s, want %s", by, test.want)
					}
					return by != ""
				})
		})
	}
}

// The driver limits memory alone, so the library is there too, for cores.
func TestPluginUsesTheLibraryForCoresBesideTheDriver(t *testing.T) {
	program, err := exec.LookPath("true") // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Limits: string(injection.Native), LimiterLibrary: program}
	o.StateDir = t.TempDir()
	by, directory, err := o.limiter(t.Context(), nil)
	if _, missing := os.Stat(filepath.Join(directory, "libvgpu.so")); err != nil || missing != nil || by != injection.Native {
		t.Errorf("by %s, with the library in %q (%v, %v)", by, directory, err, missing)
	}
	o.LimiterLibrary += ".missing"
	if by, directory, err := o.limiter(t.Context(), nil); err != nil || by != injection.Native || directory != "" {
		t.Errorf("without a library: by %s, in %q (%v)", by, directory, err)
	}
}

func TestPluginNamesADriverThatCannotLimit(t *testing.T) {
	o := Options{Limits: string(injection.Native)}
	_, _, err := o.limiter(t.Context(), errors.New("the driver 570.158.01 has no such call"))
	if err == nil || !strings.Contains(err.Error(), "--limits=native: the driver 570.158.01 has no such call") {
		t.Errorf("got %v", err)
	}
}
