// Package vgpumemory measures the resident memory of vgpu-plugin while pods come and go. The program runs as a process with a
// real API server. Test doubles play the container runtime's side of NRI and the kubelet's side of the device plugin API.
package vgpumemory

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/build/port"
	"gpufabric.io/build/repository"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/tests/simcluster/controlplane"
)

const (
	nodeName = "node-a"
	// The seed's machine, with its split count and its factor; its cards have ECC off and 49140 MiB, these 46068.
	profile        = "l40s-8"
	shares, memory = 80, 36848
	batches, pods  = 5, 40
	// patience bounds each wait for an event.
	patience = 5 * time.Minute
	// most is how much private memory the plugin may keep, in MiB. It had 12 while its heap could grow by 20 percent, and may double now;
	// it had 35 before its devices were kept as the bytes that are sent. Clean pages of the program's file do not count: their number
	// depends on the kernel. Go's runtime gives free memory back within minutes.
	most = 30
)

func TestPluginStaysSmallThroughTwoHundredPods(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a control plane and waits for the plugin to give memory back; -short asks for neither")
	}
	n := start(t)
	n.awaitSmall("idle")
	began := time.Now()
	for batch := range batches {
		n.churn(batch)
	}
	t.Logf("%d pods in %v", batches*pods, time.Since(began).Round(time.Second))
	n.awaitSmall(fmt.Sprintf("after %d pods", batches*pods))
}

// node is a node on which vgpu-plugin runs.
type node struct {
	t       *testing.T
	client  kubernetes.Interface
	kubelet *kubelettest.Kubelet
	runtime *adaptation.Adaptation
	process *os.Process
	metrics string // the address
	uuids   []string
}

func start(t *testing.T) *node {
	t.Helper()
	root, err := repository.Root()
	must(t, err)
	dir, err := os.MkdirTemp("/tmp", "vgpu") // short, because of the unix sockets below it
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binaries, err := controlplane.Binaries(t.Context())
	must(t, err)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Dir: filepath.Join(dir, "c"), Binaries: binaries})
	must(t, err)
	t.Cleanup(plane.Stop)
	config, err := plane.Admin()
	must(t, err)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	n := &node{t: t, client: client, kubelet: kubelettest.New(t), metrics: free(t)}
	_, err = client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	must(t, err)
	n.kubelet.Start()
	n.serveNRI(dir)
	machine := filepath.Join(dir, "n")
	fakes := filepath.Join(root, "fakes/build")
	out, err := exec.CommandContext(t.Context(), filepath.Join(fakes, "fakefabric"), "render", "--profile", profile, "--node", "0", "--nodes",
		"1", "--root", machine,
		"--library-dir", filepath.Join(fakes, "lib")).CombinedOutput()
	if err != nil {
		t.Fatalf("render the machine: %v: %s (make fakes builds what it needs)", err, out)
	}
	n.run(filepath.Join(root, "bin/gpufabric-node"), plane.Kubeconfig(), dir, machine)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-memory", memory)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", shares)
	n.await("the node's registration", func(ctx context.Context) bool {
		object, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		must(t, err)
		n.uuids = nil
		for card := range strings.SplitSeq(strings.TrimSuffix(object.Annotations["volcano.sh/node-vgpu-register"], ":"), ":") {
			uuid, _, _ := strings.Cut(card, ",")
			n.uuids = append(n.uuids, uuid)
		}
		return len(n.uuids) == 8
	})
	ready, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, controlplane.AwaitDefaultAccount(ready, client, "default"))
	return n
}

// serveNRI is the container runtime's side of NRI. It has no containers when the plugin connects.
func (n *node) serveNRI(dir string) {
	n.t.Helper()
	var err error
	n.runtime, err = adaptation.New("double", "v2", func(ctx context.Context, sync adaptation.SyncCB) error {
		_, err := sync(ctx, nil, nil)
		return err
	}, func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	},
		adaptation.WithSocketPath(filepath.Join(dir, "nri.sock")), adaptation.WithPluginPath(filepath.Join(dir, "none")),
		adaptation.WithPluginConfigPath(filepath.Join(dir, "none")))
	must(n.t, err)
	must(n.t, n.runtime.Start())
	n.t.Cleanup(n.runtime.Stop)
}

// run starts the plugin, which ends with the test.
func (n *node) run(program, kubeconfig, dir, machine string) {
	n.t.Helper()
	log, err := os.Create(filepath.Join(dir, "log"))
	must(n.t, err)
	command := exec.Command(program, "vgpu-plugin", "--node-name="+nodeName, "--driver-root="+machine+"/driver",
		"--sysfs-root="+machine+"/sys",
		"--dev-root="+machine+"/dev", "--proc-devices="+machine+"/proc/devices", "--cdi-root="+dir+"/cdi", "--state-dir="+dir+"/state",
		"--handover-dir=",
		"--kubelet-root="+n.kubelet.Root(), "--nri-socket="+dir+"/nri.sock", "--metrics-address="+n.metrics, "--gpu-memory-factor=10",
		"--device-split-count=10")
	command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(n.t, command.Start())
	n.process = command.Process
	n.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if text, err := os.ReadFile(log.Name()); n.t.Failed() && err == nil {
			n.t.Logf("vgpu-plugin said:\n%s", text)
		}
		_ = log.Close()
	})
}

// churn starts, runs and ends a batch of pods.
func (n *node) churn(batch int) {
	n.t.Helper()
	ctx := n.t.Context()
	var ended []func()
	for i := range pods {
		pod := n.schedule(fmt.Sprint("churn-", i), fmt.Sprintf("%s,NVIDIA,%d,0:;", n.uuids[(batch+i)%len(n.uuids)], 100+10*batch+i))
		ended = append(ended, n.startPod(pod, 100+10*batch+i))
	}
	n.awaitHeld(pods)
	for _, end := range ended {
		end()
	}
	must(n.t, n.client.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
		metav1.ListOptions{}))
	n.awaitHeld(0)
}

// schedule makes a pod as the scheduler leaves it.
func (n *node) schedule(name, devices string) *corev1.Pod {
	n.t.Helper()
	pod, err := n.client.CoreV1().Pods("default").Create(n.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"churn": "vgpu"}, Annotations: map[string]string{
			"volcano.sh/vgpu-node": nodeName, "volcano.sh/vgpu-ids-new": devices, "volcano.sh/devices-to-allocate": devices,
			"volcano.sh/bind-phase": "allocating",
		}},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{
			Name: "main", Image: "ubuntu:22.04", Command: []string{"sleep", "infinity"},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"volcano.sh/vgpu-number": resource.MustParse("1")}},
		}}},
	}, metav1.CreateOptions{})
	must(n.t, err)
	return pod
}

// startPod does what the kubelet and the runtime do with a pod. The returned function ends the pod.
func (n *node) startPod(pod *corev1.Pod, units int) (end func()) {
	n.t.Helper()
	ctx := n.t.Context()
	given := map[string][]string{}
	for name, count := range map[string]int{"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": units} {
		ids, _, err := n.kubelet.Allocate(ctx, name, count)
		must(n.t, err)
		given[name] = ids
	}
	uid := string(pod.UID)
	sandbox := &adaptation.PodSandbox{Id: "sandbox-" + uid, Name: pod.Name, Uid: uid, Namespace: pod.Namespace, Annotations: pod.Annotations}
	container := &adaptation.Container{Id: "container-" + uid, PodSandboxId: sandbox.Id, Name: "main", Args: []string{"sleep", "infinity"},
		Env: []string{"PATH=/usr/bin:/bin"}}
	must(n.t, n.runtime.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: sandbox}))
	made, err := n.runtime.CreateContainer(ctx, &adaptation.CreateContainerRequest{Pod: sandbox, Container: container})
	must(n.t, err)
	limit := fmt.Sprintf("%dm", units*10)
	for _, variable := range made.GetAdjust().GetEnv() {
		if variable.GetKey() == "CUDA_DEVICE_MEMORY_LIMIT_0" && variable.GetValue() != limit {
			n.t.Fatalf("%s has %s of memory, want %s", pod.Name, variable.GetValue(), limit)
		}
	}
	if len(made.GetAdjust().GetEnv()) == 0 {
		n.t.Fatalf("%s was given nothing", pod.Name)
	}
	now := time.Now().UTC().Format(time.RFC3339)
	_, err = n.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"status": {"phase": "Running", "startTime": %q, "podIP": "10.1.2.3",
		"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}, {"type": "ContainersReady", `+
			`"status": "True"}],
		"containerStatuses": [{"name": "main", "ready": true, "image": "ubuntu:22.04", "imageID": "", "restartCount": 0, "state": `+
			`{"running": {"startedAt": %q}}}]}}`, now, now),
		metav1.PatchOptions{}, "status")
	must(n.t, err)
	return func() {
		_, err := n.runtime.StopContainer(ctx, &adaptation.StopContainerRequest{Pod: sandbox, Container: container})
		must(n.t, err)
		must(n.t, n.runtime.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: sandbox, Container: container}))
		must(n.t, n.runtime.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: sandbox}))
		for name, ids := range given {
			n.kubelet.Free(name, ids...)
		}
	}
}

// awaitHeld waits until so many containers hold shares. The metrics also show that the kubelet has got the lists of units.
func (n *node) awaitHeld(want int) {
	n.t.Helper()
	n.await(fmt.Sprint(want, " containers that hold shares"), func(context.Context) bool {
		response, err := http.Get("http://" + n.metrics + "/metrics")
		must(n.t, err)
		defer response.Body.Close() //nolint:errcheck // read only
		text, err := io.ReadAll(response.Body)
		must(n.t, err)
		return strings.Contains(string(text), fmt.Sprintf("\ngpufabric_vgpu_containers %d\n", want)) &&
			strings.Contains(string(text), `gpufabric_device_plugin_list_sends_total{resource="volcano.sh/vgpu-number"}`)
	})
}

// await polls a condition that has no event.
func (n *node) await(what string, is func(context.Context) bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !is(n.t.Context()); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("no %s within %v", what, patience)
		}
	}
}

// awaitSmall returns when the plugin's private memory is at most what it may keep.
func (n *node) awaitSmall(when string) {
	n.t.Helper()
	began, first := time.Now(), true
	n.await(fmt.Sprintf("fall of the plugin's anonymous memory to %d MiB %s", most, when), func(context.Context) bool {
		in := n.memory()
		small := in["RssAnon"] > 0 && in["RssAnon"] <= most
		if first || small {
			n.t.Logf("measured: vgpu-plugin %s and %v later: %.1f MiB resident, %.1f of them anonymous", when,
				time.Since(began).Round(time.Second), in["VmRSS"], in["RssAnon"])
		}
		first = false
		return small
	})
}

// memory returns the plugin's memory in MiB, by the names of /proc/PID/status.
func (n *node) memory() map[string]float64 {
	n.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.process.Pid))
	must(n.t, err)
	in := map[string]float64{}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "kB" {
			kib, err := strconv.Atoi(fields[1])
			must(n.t, err)
			in[strings.TrimSuffix(fields[0], ":")] = float64(kib) / 1024
		}
	}
	return in
}

func free(t *testing.T) string {
	t.Helper()
	ports, err := port.Free(1)
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
