package exclusive

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"
)

func sandbox(id, uid, namespace string) *api.PodSandbox {
	s := &api.PodSandbox{Id: id, Uid: uid, Namespace: "default", Name: "pod-" + id, Linux: &api.LinuxPodSandbox{}}
	if namespace != "" {
		s.Linux.Namespaces = []*api.LinuxNamespace{{Type: "pid"}, {Type: "network", Path: namespace}}
	}
	return s
}

func TestHookMovesDevicesOnTheRuntimesCalls(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1")
	dir := t.TempDir()
	grants := map[string][]Grant{"uid-a": first("uid-a")}
	events := record.NewFakeRecorder(10)
	hook := &Hook{Events: events, Mover: newMover(t, dir, kernel), Grants: func(uid string) []Grant { return grants[uid] },
		Nodes: func(_ context.Context, _ string) ([]*api.LinuxDevice, error) {
			return []*api.LinuxDevice{{Path: "/dev/infiniband/uverbs7", Type: "c", Major: 231, Minor: 199}}, nil
		}}
	a, stranger := sandbox("a", "uid-a", podA), sandbox("b", "uid-b", podB)
	inPod := map[string]string{"mlx5_0": podA, "ens1": podA}
	marked := &api.Container{Name: "train", Env: []string{"PATH=/bin", Environment("1-2-3", "default/nic-uid-a")}}

	expect := func(step string, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, kernel.away()); diff != "" {
			t.Errorf("%s:\n%s", step, diff)
		}
	}
	if err := errors.Join(hook.RunPodSandbox(t.Context(), stranger), hook.RunPodSandbox(t.Context(), a)); err != nil {
		t.Fatal(err)
	}
	expect("a pod with a grant starts", inPod)
	adjustment, _, err := hook.CreateContainer(t.Context(), a, marked)
	if err != nil {
		t.Fatalf("the pod's own container: %v", err)
	}
	if devices := adjustment.GetLinux().GetDevices(); len(devices) != 1 || devices[0].GetPath() != "/dev/infiniband/uverbs7" {
		t.Errorf("the pod's own container has the device nodes %v", devices)
	}
	if adjustment, _, err := hook.CreateContainer(t.Context(), a, &api.Container{Name: "sidecar"}); err != nil || adjustment != nil {
		t.Errorf("a container of the pod without the claim: %v, %v", adjustment, err)
	}
	_, _, err = hook.CreateContainer(t.Context(), stranger, marked)
	if err == nil || !strings.Contains(err.Error(), "default/nic-uid-a were given to the network of another pod") {
		t.Errorf("another pod's container: %v", err)
	}
	unit := &api.Container{Name: "shares", Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/infiniband/uverbs1"}}}}
	for _, pod := range []*api.PodSandbox{stranger, sandbox("host", "uid-host", "")} {
		if adjustment, _, err := hook.CreateContainer(t.Context(), pod, unit); err != nil || adjustment != nil {
			t.Errorf("a container with a device plugin's unit: %v, %v", adjustment, err)
		}
	}
	if len(events.Events) != 1 || !strings.HasPrefix(<-events.Events,
		"Warning RDMADeviceNotInPodNetwork container shares: the node's RDMA devices are in exclusive mode") {
		t.Errorf("of a pod with a network of its own and one in the node's there are %d more Events", len(events.Events))
	}
	if err := hook.StopPodSandbox(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	expect("it stops", map[string]string{})
	if err := hook.RunPodSandbox(t.Context(), sandbox("host", "uid-a", "")); err != nil {
		t.Fatal(err)
	}
	expect("a pod in the node's network starts", map[string]string{})
	if _, err := hook.Synchronize(t.Context(), []*api.PodSandbox{a, stranger}, nil); err != nil {
		t.Fatal(err)
	}
	expect("the plugin comes back and finds a pod that started without it", inPod)
	if _, err := hook.Synchronize(t.Context(), []*api.PodSandbox{stranger}, nil); err != nil || !hook.Connected() {
		t.Fatal(err, hook.Connected())
	}
	expect("the plugin comes back and the pod is gone", map[string]string{})
	if got := slices.Collect(maps.Keys(kernel.at)); len(got) != 2 {
		t.Errorf("links %v", got)
	}
}

func TestHookReportsAnAddressThatAPodCannotHave(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1")
	kernel.missing = map[string][]string{"ens1": {"ens1 has no address fd00::1/64 in the pod: permission denied", strings.Repeat("x", 2000)}}
	events := record.NewFakeRecorder(10)
	hook := &Hook{Mover: newMover(t, t.TempDir(), kernel), Events: events, Grants: first}
	a := sandbox("a", "uid-a", podA)
	if err := hook.RunPodSandbox(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	event := <-events.Events
	if !strings.HasPrefix(event, "Warning RDMAInterfaceIncomplete ens1 has no address fd00::1/64 in the pod") || len(event) > 1100 {
		t.Errorf("the pod's Event is %q", event)
	}
	if err := hook.StopPodSandbox(t.Context(), a); err != nil || len(kernel.away()) > 0 {
		t.Errorf("taken back: %v, away %v", err, kernel.away())
	}
}

func TestHookAwaitsAnEndedNamespaceWithoutDelayingOthers(t *testing.T) {
	kernel := newMachine("mlx5_0", "ens1", "mlx5_1", "ens2", "mlx5_2", "ens3")
	m := newMover(t, t.TempDir(), kernel)
	give := func(sandbox, namespace string, devices ...Device) {
		grants := []Grant{{Claim: "default/" + sandbox, PodUID: sandbox, Devices: devices}}
		if _, err := m.Give(t.Context(), sandbox, "default/"+sandbox, namespace, grants); err != nil {
			t.Fatal(err)
		}
	}
	give("a", podA, Device{RDMA: "mlx5_0", Nets: []string{"ens1"}})
	give("b", podB, Device{RDMA: "mlx5_1", Nets: []string{"ens2"}})
	kernel.ended = map[string]bool{podA: true, podB: true}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Keep(ctx, nil) }()
	// Both are waited for at the same time.
	if waited := []string{<-kernel.awaiting, <-kernel.awaiting}; waited[0] == waited[1] {
		t.Errorf("waited for %v", waited)
	}
	// A third pod comes and goes in between.
	give("c", "/var/run/netns/cni-c", Device{RDMA: "mlx5_2", Nets: []string{"ens3"}})
	if err := m.Take(t.Context(), "c"); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil || len(kernel.away()) > 0 {
		t.Errorf("in the end: %v, away %v", err, kernel.away())
	}
}
