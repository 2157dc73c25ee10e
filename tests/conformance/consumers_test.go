package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/repository"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

// module returns the directory of a peer's module, at the version that the peer is built from.
func module(t *testing.T, name, path string) string {
	t.Helper()
	checkout, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", path)
	cmd.Dir = filepath.Join(checkout, "build/toolchain/modules", name)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	var found struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		t.Fatalf("module %s: %v\n%s", path, err, out)
	}
	return found.Dir
}

// daemonSet renders a chart with values and returns its DaemonSet with that container, as kubectl patch leaves it.
func daemonSet(t *testing.T, chart, container, patch string, values ...string) *appsv1.DaemonSet {
	t.Helper()
	args := append([]string{"template", "peer", chart, "--namespace", "peer", "--kube-version", "1.36.3"}, values...)
	out, err := exec.CommandContext(t.Context(), peer(t, "helm"), args...).Output()
	if err != nil {
		t.Fatalf("helm %v: %v", args, err)
	}
	for _, document := range bytes.Split(out, []byte("\n---\n")) {
		var set appsv1.DaemonSet
		if err := yaml.Unmarshal(document, &set); err != nil || set.Kind != "DaemonSet" ||
			!slices.ContainsFunc(set.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == container }) {
			continue // another object of the chart
		}
		if patch == "" {
			return &set
		}
		return patched(t, &set, patch)
	}
	t.Fatalf("%s has no DaemonSet with a container %s", chart, container)
	return nil
}

func patched(t *testing.T, set *appsv1.DaemonSet, patch string) *appsv1.DaemonSet {
	t.Helper()
	before, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(patch)
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err == nil {
		text, err = strategicpatch.StrategicMergePatch(before, text, appsv1.DaemonSet{})
	}
	var after appsv1.DaemonSet
	if err == nil {
		err = json.Unmarshal(text, &after)
	}
	if err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
	return &after
}

// consumerFile is a file of fakes/consumers.
func consumerFile(t *testing.T, name string) string {
	t.Helper()
	checkout, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(checkout, "fakes/consumers", name)
}

// asPod gives a container the volumes and the environment of a DaemonSet's container on the node. Directories of the node that neither the
// fake nor this machine has are made in the node's directory, by their paths.
func (n *node) asPod(t *testing.T, c *container, set *appsv1.DaemonSet, name string) (env []string) {
	t.Helper()
	pod := set.Spec.Template.Spec
	terms := fmt.Sprint(pod.Affinity)
	if pod.Affinity != nil && pod.Affinity.NodeAffinity != nil && !strings.Contains(terms, "fakefabric.gpufabric.io/profile") {
		t.Errorf("the pod goes to no node of fakefabric: %s", terms)
	}
	all := slices.Concat(pod.InitContainers, pod.Containers)
	at := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name })
	if at < 0 {
		t.Fatalf("no container %s", name)
	}
	for _, v := range all[at].Env {
		if v.ValueFrom == nil {
			env = append(env, v.Name+"="+v.Value)
		}
	}
	for _, mount := range all[at].VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if i < 0 {
			t.Fatalf("volume %s is not there", mount.Name)
		}
		options := []string{"rbind", "rw"}
		if mount.ReadOnly {
			options[1] = "ro"
		}
		c.spec.Mounts = slices.DeleteFunc(c.spec.Mounts, func(m oci.Mount) bool { return m.Destination == mount.MountPath })
		c.spec.Mounts = append(c.spec.Mounts, oci.Mount{Destination: mount.MountPath, Type: "bind", Source: n.source(t, pod.Volumes[i]),
			Options: options})
	}
	return env
}

// source is where a volume is on this machine.
func (n *node) source(t *testing.T, v corev1.Volume) string {
	t.Helper()
	if v.HostPath == nil {
		return t.TempDir()
	}
	if rest, fake := strings.CutPrefix(v.HostPath.Path, state.FallbackRoot); fake {
		path := filepath.Join(n.root, rest)
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the fake node has no %s", v.HostPath.Path)
		}
		return path
	}
	if slices.Contains([]string{"/sys", "/boot", "/lib", "/usr/lib", "/etc/os-release", "/proc/swaps"}, v.HostPath.Path) {
		return v.HostPath.Path
	}
	path := filepath.Join(n.root, v.HostPath.Path)
	mkdir(t, path)
	return path
}

// start runs a program in the container until the test ends.
func (c *container) start(t *testing.T, env []string, args ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	c.write(t, env, args)
	cmd := exec.CommandContext(ctx, "runc", "--root", c.bundle+"/run", "run", "--bundle", c.bundle, filepath.Base(c.bundle))
	said := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // runc passes it on
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("%v ended (%v) and printed:\n%s", args, err, said)
		}
	})
}

// TestDevicePluginsChartServesTheNode runs NVIDIA's device plugin with the volumes and the environment of its chart.
func TestDevicePluginsChartServesTheNode(t *testing.T) {
	program := peer(t, "nvidia-device-plugin")
	chart := filepath.Join(module(t, "k8s-device-plugin", "github.com/NVIDIA/k8s-device-plugin"), "deployments/helm/nvidia-device-plugin")
	set := daemonSet(t, chart, "nvidia-device-plugin-ctr", "", "--values", consumerFile(t, "nvidia-device-plugin.yaml"))
	for _, name := range []string{"h100-hgx", "gb200-nvl72"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			n := newNode(t, name)
			k := newKubelet(t, n)
			c := newContainer(t, program)
			c.start(t, n.asPod(t, c, set, "nvidia-device-plugin-ctr"), inImage(program))
			r := k.await(ctx, t)
			var want, got []string
			for _, g := range n.GPUs {
				want = append(want, g.UUID)
			}
			for _, d := range r.devices {
				got = append(got, d.ID)
			}
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" || r.name != "nvidia.com/gpu" {
				t.Errorf("%s (-profile +device plugin):\n%s", r.name, diff)
			}
			if visible := r.allocate(ctx, t, got[0]).Envs["NVIDIA_VISIBLE_DEVICES"]; visible != got[0] {
				t.Errorf("%s was allocated, and the container has %q", got[0], visible)
			}
		})
	}
}

// TestGPUFeatureDiscoverysChartLabelsTheNode runs GPU feature discovery with the volumes and the environment of its chart and the patch.
func TestGPUFeatureDiscoverysChartLabelsTheNode(t *testing.T) {
	program := peer(t, "gpu-feature-discovery")
	chart := filepath.Join(module(t, "k8s-device-plugin", "github.com/NVIDIA/k8s-device-plugin"), "deployments/helm/nvidia-device-plugin")
	const name = "gpu-feature-discovery-ctr"
	set := daemonSet(t, chart, name, consumerFile(t, "gpu-feature-discovery.yaml"), "--values", consumerFile(t, "nvidia-device-plugin.yaml"),
		"--set", "gfd.enabled=true,nfd.enabled=false")
	n := newNode(t, "gb200-nvl72")
	c := newContainer(t, program)
	env := n.asPod(t, c, set, name)
	if out, err := c.run(t, append(env, "GFD_ONESHOT=true", "GFD_NO_TIMESTAMP=true"), inImage(program)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file := filepath.Join(n.root, "etc/kubernetes/node-feature-discovery/features.d/gfd")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := labels(string(content))
	for label, want := range expectedLabels(n.Node) {
		if got["nvidia.com/"+label] != want {
			t.Errorf("%s is %q, want %q", label, got["nvidia.com/"+label], want)
		}
	}
}

// TestNFDsChartLabelsTheVendorsOfTheNode runs the worker with the node's /sys of its chart and the patch. The image's program is built for
// /host-sys; that of the module reads /sys.
func TestNFDsChartLabelsTheVendorsOfTheNode(t *testing.T) {
	program := peer(t, "nfd-worker")
	chart := filepath.Join(module(t, "node-feature-discovery", "sigs.k8s.io/node-feature-discovery"), "deployment/helm/node-feature-discovery")
	set := daemonSet(t, chart, "worker", consumerFile(t, "node-feature-discovery.yaml"))
	n := newNode(t, "h100-hgx")
	c := newContainer(t, program)
	env := n.asPod(t, c, set, "worker")
	at := slices.IndexFunc(c.spec.Mounts, func(m oci.Mount) bool { return m.Destination == "/host-sys" })
	if at < 0 {
		t.Fatalf("the worker has no /host-sys: %v", c.spec.Mounts)
	}
	sys := oci.Mount{Destination: "/sys", Type: "bind", Source: c.spec.Mounts[at].Source, Options: []string{"rbind", "ro"}}
	c.spec.Mounts = append(slices.DeleteFunc(c.spec.Mounts, func(m oci.Mount) bool { return strings.HasPrefix(m.Destination, "/sys") }), sys)
	kubeconfig := filepath.Join(c.bundle, "rootfs/kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(noCluster), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := c.run(t, env, inImage(program), "-kubeconfig", "/kubeconfig", "-no-publish", "-oneshot", "-feature-sources=pci",
		"-label-sources=pci", "-options", nfdOptions, "-v", "3")
	if err != nil {
		t.Fatal(err)
	}
	for _, vendor := range []string{"10de", "15b3"} {
		if !strings.Contains(out, `feature.node.kubernetes.io/pci-`+vendor+`.present: "true"`) {
			t.Errorf("pci-%s.present is missing:\n%s", vendor, out)
		}
	}
}

// TestDRADriversChartFindsTheDriver runs the check that the chart of NVIDIA's DRA driver makes before its plugins start.
func TestDRADriversChartFindsTheDriver(t *testing.T) {
	source := module(t, "dra-driver-nvidia-gpu", "sigs.k8s.io/dra-driver-nvidia-gpu")
	set := daemonSet(t, filepath.Join(source, "deployments/helm/dra-driver-nvidia-gpu"), "gpus", "", "--values",
		consumerFile(t, "dra-driver-nvidia-gpu.yaml"))
	p, err := profile.Load("gb200-nvl72")
	if err != nil {
		t.Fatal(err)
	}
	n := renderNode(t, p, forPlugins)
	var programs []string
	for _, name := range []string{"bash", "basename", "ln", "date", "find", "head", "ls", "env"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, path)
	}
	c := newContainer(t, programs...)
	c.spec.Root.Readonly = false // it makes a link
	c.copy(t, filepath.Join(source, "hack/kubelet-plugin-prestart.sh"), "/usr/bin/kubelet-plugin-prestart.sh")
	out, err := c.run(t, n.asPod(t, c, set, "init-container"), inImage("bash"), "/usr/bin/kubelet-plugin-prestart.sh")
	if err != nil || !strings.Contains(out, "nvidia-smi returned with code 0") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range []string{"gpus", "compute-domains"} {
		c := newContainer(t)
		n.asPod(t, c, set, name)
		for _, m := range c.spec.Mounts {
			if m.Destination == "/driver-root" && m.Source == filepath.Join(n.root, "driver") {
				c = nil
				break
			}
		}
		if c != nil {
			t.Errorf("%s has no driver root of the fake node", name)
		}
	}
}
