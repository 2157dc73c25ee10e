package charts

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpufabric.io/drivers/doctor/platform"
	"gpufabric.io/drivers/doctor/rivals"
	"gpufabric.io/drivers/hardware/driver"
)

// layout is a node of a platform as a tree of files; their sources are in docs/platforms.md.
type layout struct {
	platform string
	// library and program are NVIDIA's management library and nvidia-smi, and links are further links: from path to target.
	library, program string
	links            map[string]string
	// directories are made besides.
	directories []string
	// readOnly are directories in which nothing can be made, noexec those whose files cannot be run.
	readOnly, noexec []string
	values           map[string]any
}

// layouts are the places of the platforms, and of systems that generic has to find.
func layouts() map[string]layout {
	const kubelet = "/var/lib/kubelet"
	set := func(key, value string) map[string]any { return map[string]any{"hardware": map[string]any{key: value}} }
	return map[string]layout{
		"Ubuntu":       {platform: "generic", library: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi"},
		"Ubuntu arm64": {platform: "generic", library: "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi"},
		"Debian": {platform: "generic", library: "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
			program: "/usr/lib/nvidia/current/nvidia-smi", links: map[string]string{
				"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":                  "/etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu",
				"/etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu": "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1"}},
		"Amazon Linux 2023": {platform: "generic", library: "/usr/lib64/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi"},
		"GPU operator's driver container": {platform: "generic", library: "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
			program: "/run/nvidia/driver/usr/bin/nvidia-smi"},
		"OpenShift": {platform: "openshift", library: "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
			program: "/run/nvidia/driver/usr/bin/nvidia-smi", readOnly: []string{"/usr"}},
		"GKE": {platform: "gke", library: "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
			program: "/home/kubernetes/bin/nvidia/bin/nvidia-smi", noexec: []string{"/var", "/home"}, readOnly: []string{"/usr", "/etc"},
			directories: []string{"/home/kubernetes/bin"}},
		"Bottlerocket": {platform: "eks-bottlerocket", library: "/usr/lib64/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi",
			readOnly: []string{"/usr", "/etc"}},
		"Bottlerocket before kernel 6.18": {platform: "eks-bottlerocket", library: "/usr/lib/nvidia/tesla/libnvidia-ml.so.1",
			program: "/usr/libexec/nvidia/tesla/bin/nvidia-smi", readOnly: []string{"/usr", "/etc"}},
		"AKS, Ubuntu": {platform: "aks", library: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi"},
		"Talos from 1.13": {platform: "talos", library: "/usr/local/lib/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi",
			links: map[string]string{"/usr/local/bin/nvidia-smi": "/usr/bin/nvidia-smi"}, readOnly: []string{"/usr", "/etc"}},
		"Talos before 1.13": {platform: "talos", library: "/usr/local/glibc/usr/lib/libnvidia-ml.so.1", program: "/usr/local/bin/nvidia-smi",
			readOnly: []string{"/usr", "/etc"}},
		"k3s":  {platform: "k3s", library: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi"},
		"RKE2": {platform: "rke2", library: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi"},
		"k0s": {platform: "k0s", library: "/usr/lib64/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi",
			directories: []string{"/var/lib/k0s/kubelet"}},
		"ACK": {platform: "ack", library: "/usr/lib64/libnvidia-ml.so.1", program: "/usr/bin/nvidia-smi"},
		"Flatcar, older": {platform: "generic", library: "/opt/nvidia/570.1/usr/lib64/libnvidia-ml.so.1",
			program: "/opt/nvidia/570.1/usr/bin/nvidia-smi", readOnly: []string{"/usr"}, directories: []string{kubelet, "/etc/alternatives"},
			values: set("driverRoot", "/opt/nvidia/570.1")},
	}
}

// node makes the layout's tree, and returns its root.
func (l layout) node(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	make := func(path string, text string) {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	make(l.library, "")
	make(l.program, "")
	make("/dev/nvidiactl", "")
	make("/proc/devices", "")
	directories := append([]string{"/sys/fs/cgroup", "/run", "/var/lib", "/usr/bin", "/etc", "/opt", "/home"}, l.directories...)
	if !slices.ContainsFunc(l.directories, func(d string) bool { return strings.HasSuffix(d, "/kubelet") }) {
		directories = append(directories, "/var/lib/kubelet")
	}
	if l.platform == "generic" && !slices.Contains(l.readOnly, "/etc") {
		directories = append(directories, "/etc/alternatives")
	}
	for _, directory := range directories {
		if err := os.MkdirAll(filepath.Join(root, directory), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range l.links {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(from)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(root, from)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil {
		t.Fatal(err)
	}
	return root
}

// under reports whether a path is a directory or lies below it.
func under(path, directory string) bool { return strings.HasPrefix(path+"/", directory+"/") }

// seen copies the directories of the node that a container sees to where it sees them, as the kubelet and the runtime mount them, and
// returns the container's root. A directory that would have to be made where the platform's file system is read-only is an error.
func (l layout) seen(t *testing.T, node string, pod corev1.PodSpec, container corev1.Container) string {
	t.Helper()
	root := t.TempDir()
	sources := map[string]*corev1.HostPathVolumeSource{}
	for _, v := range pod.Volumes {
		sources[v.Name] = v.HostPath
	}
	for _, m := range container.VolumeMounts {
		source := sources[m.Name]
		if source == nil {
			continue
		}
		from := filepath.Join(node, strings.Replace(source.Path, "/var/run/", "/run/", 1))
		if _, err := os.Stat(from); err != nil {
			made := source.Type != nil && *source.Type == corev1.HostPathDirectoryOrCreate
			if !made || slices.ContainsFunc(l.readOnly, func(d string) bool { return under(source.Path, d) }) {
				t.Errorf("the pod waits for %s for ever, which the node lacks and where nothing can be made", source.Path)
			}
			continue
		}
		copyTree(t, from, filepath.Join(root, m.MountPath))
	}
	return root
}

// copyTree copies files and links.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		switch {
		case entry.IsDir():
			return os.MkdirAll(at, 0o755)
		case entry.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, at)
		}
		return os.WriteFile(at, nil, 0o755)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// flagOf is the value of a flag of a container.
func flagOf(t *testing.T, container corev1.Container, name string) string {
	t.Helper()
	for _, arg := range container.Args {
		if value, is := strings.CutPrefix(arg, "--"+name+"="); is {
			return value
		}
	}
	t.Fatalf("no flag --%s in %v", name, container.Args)
	return ""
}

func platformValues(l layout) map[string]any {
	values := map[string]any{"platform": l.platform, "gpus": on(), "vgpu": on(), "rdma": on()}
	maps.Copy(values, l.values)
	return values
}

func TestPlatformPodsFindDriverOfNodes(t *testing.T) {
	roles := []string{"gpufabric-compute-domain-plugin", "gpufabric-gpu-plugin", "gpufabric-vgpu-plugin", "gpufabric-mps-keeper"}
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			all := pods(t, renderValues(t, "gpufabric", platformValues(l)))
			for _, role := range roles {
				pod := all[role].Spec
				container := pod.Containers[0]
				root := l.seen(t, l.node(t), pod, container)
				places, err := driver.ParsePlaces(flagOf(t, container, "driver-root"))
				if err != nil {
					t.Fatal(err)
				}
				for i := range places {
					places[i].Path = filepath.Join(root, places[i].Path)
				}
				dev, err := driver.ParsePlace(flagOf(t, container, "dev-root"))
				if err != nil {
					t.Fatal(err)
				}
				dev.Path = filepath.Join(root, dev.Path)
				search := driver.Search{Roots: places, Dev: dev, ProcRoot: filepath.Join(root, "proc")}
				at := search.Locate()
				if got := at.Root.OnHost(at.Library); at.Library == "" || strings.TrimPrefix(got, root) != l.library {
					_, why := search.Trouble()
					t.Errorf("%s takes the library %q of the node, want %s: %s", role, strings.TrimPrefix(got, root), l.library, why)
					continue
				}
				program, err := at.Root.Program("nvidia-smi")
				if got := strings.TrimPrefix(at.Root.OnHost(program), root); err != nil || got != l.program {
					t.Errorf("%s runs %q of the node, want %s: %v", role, got, l.program, err)
				}
				if _, err := os.Stat(filepath.Join(at.Dev.Path, driver.ControlNode)); err != nil {
					t.Errorf("%s finds no device nodes: %v", role, err)
				}
			}
		})
	}
}

func TestPlatformPodsMountKubeletAndRuntimePaths(t *testing.T) {
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			node := l.node(t)
			for role, pod := range pods(t, renderValues(t, "gpufabric", platformValues(l))) {
				container := pod.Spec.Containers[0]
				if !slices.ContainsFunc(container.Args, func(a string) bool { return strings.HasPrefix(a, "--kubelet-root=") }) {
					continue
				}
				l.seen(t, node, pod.Spec, container)
				if _, err := os.Stat(filepath.Join(node, flagOf(t, container, "kubelet-root"))); err != nil {
					t.Errorf("%s looks for the kubelet where it is not: %v", role, err)
				}
				// Both containerd and CRI-O read this directory by default; it is on a tmpfs that can be written everywhere.
				if got := flagOf(t, container, "cdi-root"); got != "/var/run/cdi" {
					t.Errorf("%s writes CDI specs to %s", role, got)
				}
				state := flagOf(t, container, "state-dir")
				runs := under(state, "/home/kubernetes/bin") // which COS mounts again without noexec
				if !runs && slices.ContainsFunc(l.noexec, func(d string) bool { return under(state, d) }) {
					t.Errorf("%s puts programs that containers run into %s, whose file system is mounted noexec", role, state)
				}
			}
		})
	}
}

func TestChartHasTablesOfPlatformsAndRivals(t *testing.T) {
	text, err := os.ReadFile(Dir("gpufabric/files/platforms.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, platform.Table()) {
		t.Error("charts/gpufabric/files/platforms.yaml is not drivers/doctor/platform/platforms.yaml: copy that here")
	}
	text, err = os.ReadFile(Dir("gpufabric/files/rivals.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, rivals.Table()) {
		t.Error("charts/gpufabric/files/rivals.yaml is not drivers/doctor/rivals/rivals.yaml: copy that here")
	}
	all, err := platform.All()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(Dir(".."), "docs/platforms.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, l := range layouts() {
		shown[l.platform] = true
	}
	for name := range all {
		renderValues(t, "gpufabric", map[string]any{"platform": name})
		if !shown[name] {
			t.Errorf("no layout of a node shows platform %s", name)
		}
		if !regexp.MustCompile("(?m)^## .*`" + name + "`").Match(page) {
			t.Errorf("docs/platforms.md has no section with `%s` in its heading", name)
		}
	}
	_, err = Render(load(t, "gpufabric"), map[string]any{"platform": "eks"}, Cluster{})
	if err == nil || !strings.Contains(err.Error(), "/platform") || !strings.Contains(err.Error(), "eks-bottlerocket") {
		t.Errorf("platform: eks: %v, want an error that lists the platforms", err)
	}
}

func TestValueTakesPrecedenceOverPlatform(t *testing.T) {
	pod := pods(t, renderValues(t, "gpufabric", map[string]any{"platform": "gke", "stateDir": "/mnt/state",
		"hardware": map[string]any{"driverRoot": "/"}, "kubelet": map[string]any{"root": "/mnt/kubelet"}}))["gpufabric-compute-domain-plugin"]
	container := pod.Spec.Containers[0]
	for name, want := range map[string]string{"driver-root": "/host=/,/run/nvidia/driver", "kubelet-root": "/mnt/kubelet",
		"state-dir": "/mnt/state/compute-domain-plugin", "cdi-root": "/var/run/cdi"} {
		if got := flagOf(t, container, name); got != want {
			t.Errorf("--%s=%s, want %s", name, got, want)
		}
	}
}

func TestPlatformAddsTolerationToThoseOfValues(t *testing.T) {
	all := pods(t, renderValues(t, "gpufabric", map[string]any{"platform": "aks", "gpus": on()}))
	for _, role := range []string{"gpufabric-gpu-plugin", "gpufabric-mps-keeper"} {
		var keys []string
		for _, toleration := range all[role].Spec.Tolerations {
			keys = append(keys, toleration.Key)
		}
		if !slices.Equal(keys, []string{"nvidia.com/gpu", "sku"}) {
			t.Errorf("%s tolerates %v", role, keys)
		}
	}
}

func TestAccountsHaveSecurityContextConstraintOnOpenShift(t *testing.T) {
	values := map[string]any{"platform": "openshift", "gpus": on(), "vgpu": map[string]any{"enabled": true, "namespace": "vgpu-here"},
		"rdma": on(), "scheduler": on(), "console": map[string]any{"enabled": true, "hosts": []any{"fabric.example"}}}
	objects := renderValues(t, "gpufabric", values)
	bound := map[string]string{}
	for _, object := range objects {
		if object.GetKind() != "RoleBinding" || !strings.HasPrefix(object.GetName(), "gpufabric-scc-") {
			continue
		}
		var binding rbacv1.RoleBinding
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
			t.Fatal(err)
		}
		for _, subject := range binding.Subjects {
			if subject.Namespace != binding.Namespace {
				t.Errorf("%s of %s binds an account of %s", binding.Name, binding.Namespace, subject.Namespace)
			}
			bound[subject.Namespace+"/"+subject.Name] = strings.TrimPrefix(binding.RoleRef.Name, "system:openshift:scc:")
		}
	}
	for _, object := range objects {
		template, has := pods(t, []Object{object})[object.GetName()]
		if !has {
			continue
		}
		account := object.GetNamespace() + "/" + template.Spec.ServiceAccountName
		want := "nonroot-v2"
		if slices.ContainsFunc(template.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) {
			want = "privileged"
		}
		if bound[account] != want {
			t.Errorf("%s %s: its account %s may use SCC %q, want %q", object.GetKind(), object.GetName(), account, bound[account], want)
		}
	}
	if bound["gpufabric-system/gpufabric-imex-daemon"] != "privileged" {
		t.Errorf("IMEX daemons, which run as root, may use %q", bound["gpufabric-system/gpufabric-imex-daemon"])
	}
	for _, object := range renderValues(t, "gpufabric", map[string]any{"gpus": on()}) {
		if strings.Contains(object.YAML, "openshift") || object.GetKind() == "ResourceQuota" {
			t.Errorf("generic renders %s %s", object.GetKind(), object.GetName())
		}
	}
}

func TestChartRendersCriticalPodQuotaInEveryNamespaceOnGKE(t *testing.T) {
	var namespaces []string
	for _, object := range renderValues(t, "gpufabric", map[string]any{"platform": "gke",
		"rdma": map[string]any{"enabled": true, "namespace": "rdma-here"}}) {
		if object.GetKind() == "ResourceQuota" {
			namespaces = append(namespaces, object.GetNamespace())
		}
	}
	if slices.Sort(namespaces); !slices.Equal(namespaces, []string{"gpufabric-system", "rdma-here"}) {
		t.Errorf("quotas in %v", namespaces)
	}
}
