package hook

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/gpu/memorylimits"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
	"gpufabric.io/fakes/cgrouptest"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// limiting is a hook with a driver that limits memory, on the kernel's cgroups.
type limiting struct {
	*Hook
	*world
	t *testing.T
	// gpu is the GPU that the hook's node shares.
	gpu    nvml.Device
	driver memorylimits.Driver
	// state is the directory with the records of the limits.
	state string
	// parent is the cgroup that plays the pods'.
	parent string
}

func setupLimiting(t *testing.T, pods ...*corev1.Pod) *limiting {
	t.Helper()
	mount, parent := cgrouptest.Make(t)
	p, err := profile.Load("l40s-8")
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.Version = "615.10" // the branch that introduced memory limits
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	lib := nvmlstate.New(root)
	if r := lib.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	gpu, r := lib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	l := &limiting{t: t, gpu: gpu, parent: parent, driver: memorylimits.Driver{NVML: lib, Cgroups: memorylimits.Tree{Root: mount}},
		state: t.TempDir()}
	l.Hook, l.world = setup(t, pods...)
	if l.SharedGPUs().Cards[0].GPU.UUID, r = gpu.GetUUID(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	l.Limiter.Backend = injection.Native
	l.restart()
	return l
}

// restart drops what a plugin loses in a restart.
func (l *limiting) restart() {
	l.t.Helper()
	keeper, unreadable, err := memorylimits.Open(l.driver, l.state)
	if err != nil || len(unreadable) > 0 {
		l.t.Fatal(unreadable, err)
	}
	l.Memory, l.Book, l.first = keeper, &holdings.Book{}, first{}
}

// create makes the container as a runtime does, up to the moment before its start.
func (l *limiting) create(p *corev1.Pod, name string) *api.Container {
	l.t.Helper()
	c := container(p, name)
	adjustment, _, err := l.CreateContainer(l.t.Context(), sandbox(p), c)
	if err != nil {
		l.t.Fatal(err)
	}
	c.Annotations = adjustment.Annotations
	c.Linux = &api.LinuxContainer{CgroupsPath: "/" + filepath.Base(l.parent) + "/" + c.Id}
	if slices.ContainsFunc(adjustment.Mounts, func(m *api.Mount) bool { return m.Destination == "/etc/ld.so.preload" }) {
		l.t.Errorf("mounts %v, want no library where the driver limits", adjustment.Mounts)
	}
	if err := os.Mkdir(l.cgroup(c), 0o755); err != nil {
		l.t.Fatal(err)
	}
	return c
}

func (l *limiting) cgroup(c *api.Container) string { return filepath.Join(l.parent, c.Id) }

// is checks the driver's reservation and limit for a container.
func (l *limiting) is(when string, c *api.Container, soft, hard uint64) {
	l.t.Helper()
	got, r := l.gpu.GetMemoryLimits_v1(l.cgroup(c))
	if r != nvml.SUCCESS && r != nvml.ERROR_NOT_FOUND || got.SoftLimit != soft || got.HardLimit != hard {
		l.t.Errorf("%s: %d are reserved and %d allowed (%v), want %d and %d", when, got.SoftLimit, got.HardLimit, r, soft, hard)
	}
}

const share = 10240 << 20

// limitedPod gives a pod 10 GiB of the node's GPU.
func limitedPod(l *limiting, p *corev1.Pod) *corev1.Pod {
	q := pod(p.Name, l.SharedGPUs().Cards[0].GPU.UUID+",NVIDIA,1024,0:;", "main")
	l.cached[p.Name], l.fresh[p.Name] = q, q
	return q
}

func TestHookLimitsMemoryByTheDriver(t *testing.T) {
	p := pod("train", "", "main")
	l := setupLimiting(t, p)
	p = limitedPod(l, p)
	c := l.create(p, "main")
	l.is("when it was made", c, 0, 0)
	if err := l.StartContainer(t.Context(), sandbox(p), c); err != nil {
		t.Fatal(err)
	}
	l.is("before its start", c, share, share)
	if !slices.Equal(l.by, []injection.Backend{injection.Native}) {
		t.Errorf("held by %v", l.by)
	}
	// The runtime reports the end of its processes, and then removes its cgroup.
	if _, err := l.StopContainer(t.Context(), sandbox(p), c); err != nil {
		t.Fatal(err)
	}
	l.is("at its end", c, 0, share)
	if err := os.Remove(l.cgroup(c)); err != nil {
		t.Fatal(err)
	}
	if err := l.RemoveContainer(t.Context(), sandbox(p), c); err != nil || l.Book.Len() != 0 {
		t.Errorf("%d are booked (%v)", l.Book.Len(), err)
	}
}

func TestHookFailsAContainerThatTheDriverRejects(t *testing.T) {
	p := pod("train", "", "main")
	l := setupLimiting(t, p)
	p = limitedPod(l, p)
	c := l.create(p, "main")
	if err := os.Remove(l.cgroup(c)); err != nil {
		t.Fatal(err)
	}
	err := l.StartContainer(t.Context(), sandbox(p), c)
	if err == nil || !strings.Contains(err.Error(), "pod default/train") || !strings.Contains(err.Error(), "does not exist at") {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(l.failed, []string{"train/main"}) {
		t.Errorf("failed %v", l.failed)
	}
	c.Annotations[heldAnnotation] = "forged"
	if err := l.StartContainer(t.Context(), sandbox(p), c); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("without its shares: %v", err)
	}
	c.Annotations = nil // a container without shares
	if err := l.StartContainer(t.Context(), sandbox(p), c); err != nil {
		t.Error(err)
	}
}

func TestHookRemovesStaleLimitsAfterARestart(t *testing.T) {
	names := []string{"runs", "late", "waits", "ended"}
	var pods []*corev1.Pod
	for _, name := range names {
		pods = append(pods, pod(name, "", "main"))
	}
	l := setupLimiting(t, pods...)
	all := map[string]*api.Container{}
	var sandboxes []*api.PodSandbox
	for i, p := range pods {
		p = limitedPod(l, p)
		c := l.create(p, "main")
		c.State, all[p.Name], pods[i] = api.ContainerState_CONTAINER_RUNNING, c, p
		sandboxes = append(sandboxes, sandbox(p))
		if p.Name == "runs" || p.Name == "ended" {
			if err := l.StartContainer(t.Context(), sandbox(p), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	all["waits"].State = api.ContainerState_CONTAINER_CREATED
	l.restart()
	if _, err := l.Synchronize(t.Context(), sandboxes, []*api.Container{all["runs"], all["late"], all["waits"]}); err != nil {
		t.Fatal(err)
	}
	l.is("one that runs", all["runs"], share, share)
	l.is("one that was started meanwhile", all["late"], share, share)
	l.is("one that is not started", all["waits"], 0, 0)
	l.is("one that ended meanwhile", all["ended"], 0, share)
	if l.Book.Len() != 3 {
		t.Errorf("%d are booked, want those that are there", l.Book.Len())
	}
}
