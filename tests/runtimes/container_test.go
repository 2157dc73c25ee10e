//go:build runtimes

package runtimes_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

const claimUID = "2f1c7b6e-0000-4000-8000-000000000039"

// claim is a prepared claim with the first GPU of a fake node.
type claim struct {
	id    string // the CDI device
	edits specs.ContainerEdits
}

// prepare renders a fake node of a profile below a directory, and writes the CDI spec of a claim with its first GPU, as gpu-plugin does.
func prepare(t *testing.T, directory, profileName string) claim {
	t.Helper()
	p, err := profile.Load(profileName)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(directory, "node")
	err = tree.Render(t.Context(), tree.Options{Profile: p, Root: root, LibraryDir: filepath.Join(built.Dir(t), "lib")})
	if err != nil {
		t.Fatal(err)
	}
	locate, err := inventory.Locator(t.Context(), filepath.Join(root, "sys"))
	if err != nil {
		t.Fatal(err)
	}
	library := nvmlstate.New(root)
	if r := library.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	defer func() { _ = library.Shutdown() }() // the node ends with the test
	node, err := inventory.Reader{NVML: library, Locate: locate}.Read()
	if err != nil {
		t.Fatal(err)
	}
	set, err := edits.Find(node, edits.Options{NVML: library, DriverRoot: filepath.Join(root, "driver"), DevRoot: filepath.Join(root, "dev"),
		ProcDevices: filepath.Join(root, "proc/devices"), Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(slices.Concat(node.Problems, set.Problems)...); err != nil {
		t.Fatal(err)
	}
	gpu := node.GPUs[0]
	if err := set.Lacking(gpu); err != nil {
		t.Fatal(err)
	}
	both := set.Common()
	edits.Merge(&both, set.GPU(gpu))
	dir, err := cdi.Open(filepath.Join(directory, "cdi"), devices.Driver, atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Write(claimUID, []cdi.Device{{Name: "gpu-0", Edits: both}}); err != nil {
		t.Fatal(err)
	}
	return claim{id: dir.ID(claimUID, "gpu-0"), edits: both}
}

// image is a registry's reference of an image with the program probe alone.
func image(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probe")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the image's program: %v: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Name: "probe", Mode: 0o755, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write(content)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	whole, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		whole, err = mutate.ConfigFile(whole, config(t, whole))
	}
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	reference, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/probe:1")
	if err == nil {
		err = remote.Write(reference, whole)
	}
	if err != nil {
		t.Fatal(err)
	}
	return reference.String()
}

// config is the configuration of an image whose program waits.
func config(t *testing.T, of v1.Image) *v1.ConfigFile {
	t.Helper()
	file, err := of.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	file.Config.Entrypoint = []string{"/probe", "wait"}
	return file
}

// configure writes the configuration of a containerd that runs containers without a network, whose image of sandboxes is given. The table
// of the CRI plugin has extra; conf are drop-in files.
func (r release) configure(t *testing.T, directory, image, extra string, conf map[string]string) {
	t.Helper()
	etc := filepath.Join(directory, "etc")
	// The machines that run tests may have no CAP_SYS_RESOURCE, which a score below the parent's needs.
	text := fmt.Sprintf(`version = 2
imports = ["conf.d/*.toml"]
[ttrpc]
address = "%[1]s/t"
[debug]
level = "warn"
[plugins."io.containerd.internal.v1.opt"]
path = "%[1]s/opt"
[plugins."io.containerd.nri.v1.nri"]
disable = true
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %[2]q
restrict_oom_score_adj = true
%[3]s
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%[1]s/cni"
conf_dir = "%[1]s/net.d"
`, directory, image, extra)
	write(t, filepath.Join(etc, "config.toml"), text)
	for file, text := range conf {
		write(t, filepath.Join(etc, "conf.d", file), text)
	}
}

// container runs a pod on the host's network with a container that gets a CDI device as the kubelet asks for it, and returns what probe
// prints in it about paths; or the error of making the container.
func (d *daemon) container(t *testing.T, image, device string, paths ...string) (string, error) {
	t.Helper()
	ctx := t.Context()
	if _, err := d.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		t.Fatalf("pull %s: %v", image, err)
	}
	node := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER}
	parent := "gpufabric-" + filepath.Base(d.directory)
	defer removeCgroups(t, parent)
	pod := &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "uid"},
		LogDirectory: filepath.Join(d.directory, "pod"), Linux: &cri.LinuxPodSandboxConfig{CgroupParent: "/" + parent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: node}}}
	sandbox, err := d.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatalf("run a pod's sandbox: %v", err)
	}
	defer func() {
		if _, err := d.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
			t.Errorf("stop the pod's sandbox: %v", err)
		}
		if _, err := d.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
			t.Errorf("remove the pod's sandbox: %v", err)
		}
	}()
	made, err := d.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod,
		Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: image}, LogPath: "c.log",
			CDIDevices: []*cri.CDIDevice{{Name: device}},
			Linux:      &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: node}}}})
	if err != nil {
		return "", err
	}
	if _, err := d.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		return "", fmt.Errorf("start the container: %w", err)
	}
	out, err := d.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: made.ContainerId, Cmd: append([]string{"/probe"}, paths...),
		Timeout: 30})
	if err != nil || out.ExitCode != 0 {
		t.Fatalf("run probe in the container: %v, %v", err, out)
	}
	return string(out.Stdout), nil
}

// removeCgroups removes the pod's cgroups, as the kubelet does: one with cgroup v2, one of each controller with v1.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	for _, pattern := range []string{name, "*/" + name} {
		found, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range found {
			// cpu and cpuacct may be links to one directory.
			if err := os.Remove(one); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	}
}

// TestContainerdGivesContainerDeviceOfClaim runs a claim's container on each containerd, with CDI by its default, and switched on and off
// in its file and in a drop-in. Preflight's answer is compared with the container's devices. Where CDI is off, containerd 1.7 starts the
// container without its device, and containerd 2 refuses to make it.
func TestContainerdGivesContainerDeviceOfClaim(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: containerd runs containers as root")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("skipped: no runc on the PATH (Debian: apt-get install runc)")
	}
	probe := image(t)
	drop := func(value string) map[string]string {
		return map[string]string{"10.toml": "version = 2\n" + cri2 + "restrict_oom_score_adj = true\nsandbox_image = \"" + probe +
			"\"\ncdi_spec_dirs = [\"DIRECTORY/cdi\"]\nenable_cdi = " + value +
			"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n"}
	}
	for _, r := range releases(t) {
		for _, c := range []struct {
			name  string
			extra string
			conf  map[string]string
			given bool
		}{
			{name: "by default", given: !r.before2()},
			{name: "on", extra: "enable_cdi = true", given: true},
			{name: "off", extra: "enable_cdi = false"},
			{name: "on in a drop-in", extra: "enable_cdi = false", conf: drop("true"), given: true},
			{name: "off in a drop-in", extra: "enable_cdi = true", conf: drop("false")},
		} {
			t.Run(r.version+" "+c.name, func(t *testing.T) {
				directory := place(t)
				gpu := prepare(t, directory, "h100-hgx")
				for file, text := range c.conf {
					c.conf[file] = strings.ReplaceAll(text, "DIRECTORY", directory)
				}
				r.configure(t, directory, probe, fmt.Sprintf("cdi_spec_dirs = [%q]\n%s", filepath.Join(directory, "cdi"), c.extra), c.conf)
				answer := answered(t, r, directory)
				if works := answer.Result == preflight.OK; works != c.given || !works && answer.Code != "ContainerRuntimeReadsNoCDI" {
					t.Errorf("preflight answers %+v", answer)
				}
				check(t, r.start(t, directory), probe, gpu, c.given)
			})
		}
	}
}

// check runs a claim's container, and compares what it has with the claim's edits.
func check(t *testing.T, d *daemon, image string, gpu claim, given bool) {
	t.Helper()
	var paths []string
	for _, n := range gpu.edits.DeviceNodes {
		paths = append(paths, n.Path)
	}
	if len(paths) < 3 || len(gpu.edits.Mounts) < 3 {
		t.Fatalf("a claim of a GPU with %d device nodes and %d mounts", len(paths), len(gpu.edits.Mounts))
	}
	text, err := d.container(t, image, gpu.id, paths...)
	switch {
	case err != nil && (given || d.before2()):
		t.Fatal(err)
	case err == nil && !given && !d.before2():
		t.Fatal("containerd 2 starts a container without its device where CDI is off")
	case err != nil:
		if !strings.Contains(err.Error(), "CDI support is explicitly disabled") {
			t.Error(err)
		}
		return
	}
	for _, n := range gpu.edits.DeviceNodes {
		want := fmt.Sprintf("device %s %d:%d no such device or address\n", n.Path, n.Major, n.Minor)
		if !given {
			want = fmt.Sprintf("device %s no such file or directory\n", n.Path)
		}
		if !strings.Contains(text, want) {
			t.Errorf("no line %q", want)
		}
	}
	for _, m := range gpu.edits.Mounts {
		if strings.Contains(text, " "+m.ContainerPath+" ") != given {
			t.Errorf("mount of %s: want %t", m.ContainerPath, given)
		}
	}
	for _, e := range gpu.edits.Env {
		if strings.Contains(text, "env "+e+"\n") != given {
			t.Errorf("environment %s: want %t", e, given)
		}
	}
}

// answered is preflight's check of the runtime's configuration in a cluster with one node, whose Job's pod reports what it reads there.
func answered(t *testing.T, r release, directory string) preflight.Check {
	t.Helper()
	const namespace = "gpufabric"
	text := look(t, r, directory).Encode()
	s := &snapshot.Snapshot{Server: snapshot.Server{Version: "v1.36.3", Groups: []string{"resource.k8s.io/v1"}},
		Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: r.runtime(), OperatingSystem: "linux"}}}},
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p",
				Labels: map[string]string{"app.kubernetes.io/name": snapshot.PreflightJobs}},
			Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(text)}}}}}}}}
	values, err := preflight.Read([]byte("gpus: {enabled: true}\ncdi: {root: " + filepath.Join(directory, "cdi") + "}"))
	if err != nil {
		t.Fatal(err)
	}
	checks := preflight.Run(s, values, namespace)
	at := slices.IndexFunc(checks, func(c preflight.Check) bool { return c.Name == "runtime configuration" })
	if at < 0 {
		t.Fatalf("no check of the runtime's configuration in %+v", checks)
	}
	return checks[at]
}
