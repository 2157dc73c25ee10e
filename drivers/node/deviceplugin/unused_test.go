package deviceplugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/occupancy"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
)

// single is a backend whose devices are each for one pod.
type single struct{ backend }

func (single) Exclusive() bool { return true }

// followed is a running host that looks for the pods with devices.
type followed struct {
	*kubelettest.Kubelet
	pods occupancytest.Pods
	stop func()
	file string
}

func follow(t *testing.T, kubelet *kubelettest.Kubelet, dir string) *followed {
	t.Helper()
	return followBy(t, kubelet, dir, func(resource, id string) string { return resource + "/" + id })
}

func followBy(t *testing.T, kubelet *kubelettest.Kubelet, dir string, key func(resource, id string) string) *followed {
	t.Helper()
	f := &followed{Kubelet: kubelet, pods: occupancytest.New(t, filepath.Join(dir, "cgroup")),
		file: filepath.Join(dir, "holders.json")}
	host := deviceplugin.NewHost(kubelet.Root(), &filewatch.Watcher{}, nil)
	host.Holders = deviceplugin.NewHolders(kubelet.Root(), &occupancy.Cgroups{Root: filepath.Join(dir, "cgroup")}, f.file, key)
	serve(t, host, single{}, devices(2))
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := host.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	f.stop = func() { cancel(); group.Wait() }
	t.Cleanup(f.stop)
	return f
}

// A pod that was deleted by force still runs. The kubelet has forgotten it, and gives its device to the next pod.
func TestAllocateIsRefusedWhileAForgottenPodUsesTheDevice(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	f := follow(t, kubelet, t.TempDir())
	f.AwaitAllocatable(widget, 2)
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err != nil {
		t.Fatal(err)
	}
	f.Record(widget, map[string][]string{"pod-a": {"1"}})
	f.pods.Run("pod-a")
	f.Free(widget, "1")
	_, err := f.AllocateIDs(t.Context(), widget, "1")
	if err == nil || !strings.Contains(err.Error(), "container c0ffee (2 processes) of the pod with UID pod-a") {
		t.Fatalf("allocated under a running container: %v", err)
	}
	t.Logf("attacker sees: %v", err)
	// The kubelet prefers what is free: the backend alone would prefer device 1.
	ids, _, err := f.Allocate(t.Context(), widget, 1)
	if err != nil || ids[0] != "0" {
		t.Errorf("got %v, %v; want the unused device", ids, err)
	}
	f.Free(widget, "0")
	// The kubelet's next write has no pod-a. Its device does not count until its container has ended.
	f.Record(widget, map[string][]string{"pod-b": {"0"}})
	f.AwaitAllocatable(widget, 1)
	// Nor after a restart of the role.
	f.stop()
	f = follow(t, kubelet, filepath.Dir(f.file))
	f.AwaitAllocatable(widget, 1)
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err == nil {
		t.Error("allocated under a running container after a restart")
	}
	f.pods.End("pod-a")
	f.AwaitAllocatable(widget, 2)
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err != nil {
		t.Errorf("after the container's end: %v", err)
	}
}

// The kubelet writes its checkpoint for other plugins too, so a pod that it forgot may be gone from it before the next allocation of its
// device: each write is read when it is made.
func TestAllocateIsRefusedWhenTheCheckpointWasWrittenWithoutTheForgottenPod(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	f := follow(t, kubelet, t.TempDir())
	f.AwaitAllocatable(widget, 2)
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err != nil {
		t.Fatal(err)
	}
	f.pods.Run("pod-a")
	f.Record(widget, map[string][]string{"pod-a": {"1"}})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if known, err := os.ReadFile(f.file); err == nil && strings.Contains(string(known), "pod-a") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the checkpoint was not read")
		}
	}
	f.Free(widget, "1")
	f.Record(widget, nil)
	f.AwaitAllocatable(widget, 1)
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err == nil || !strings.Contains(err.Error(), "UID pod-a") {
		t.Errorf("allocated under a running container: %v", err)
	}
}

// A kubelet whose checkpoint was removed allocates anew for the pods that run: their devices are not refused to them.
func TestAllocateIsServedWhenTheKubeletsCheckpointIsGone(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	f := follow(t, kubelet, t.TempDir())
	f.AwaitAllocatable(widget, 2)
	f.pods.Run("pod-a")
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err != nil {
		t.Error(err)
	}
}

// The file is read at the first allocation. A read that fails for want of a descriptor or memory must not let the next write replace it.
func TestAllocateIsRefusedWhileTheRecordOfForgottenPodsCannotBeRead(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	kubelet.Record(widget, nil)
	dir := t.TempDir()
	file := filepath.Join(dir, "holders.json")
	if err := os.Symlink(file, file); err != nil { // it leads to itself, and cannot be opened, by root neither
		t.Fatal(err)
	}
	f := follow(t, kubelet, dir)
	f.AwaitAllocatable(widget, 2)
	f.pods.Run("pod-a")
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err == nil || !strings.Contains(err.Error(), "cannot determine whether") {
		t.Errorf("allocated under a container that may run: %v", err)
	}
	record := []byte(`{"` + widget + `/1":["pod-a"]}`)
	if err := errors.Join(os.Remove(file), os.WriteFile(file, record, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err == nil || !strings.Contains(err.Error(), "UID pod-a") {
		t.Errorf("allocated under a running container: %v", err)
	}
	f.pods.End("pod-a")
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err != nil {
		t.Errorf("after the container's end: %v", err)
	}
}

func TestHostSetsADamagedRecordOfForgottenPodsAside(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "holders.json"), []byte(`{"a":["pod-a"`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, kubelet, dir)
	f.AwaitAllocatable(widget, 2)
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(f.file + ".unreadable"); err != nil || string(text) != `{"a":["pod-a"` {
		t.Errorf("%q, %v", text, err)
	}
}

// A pool was given another name while a pod has one of its devices.
func TestAllocateIsRefusedWhileAPodHasTheDeviceUnderAnotherName(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	f := followBy(t, kubelet, t.TempDir(), func(_, id string) string { return id })
	f.AwaitAllocatable(widget, 2)
	f.pods.Run("pod-a")
	f.Record("example.com/former-name", map[string][]string{"pod-a": {"1"}})
	_, err := f.AllocateIDs(t.Context(), widget, "1")
	if err == nil || !strings.Contains(err.Error(), "UID pod-a, which got it under another name of the resource") {
		t.Errorf("allocated under a running container: %v", err)
	}
	f.pods.End("pod-a")
	if _, err := f.AllocateIDs(t.Context(), widget, "1"); err != nil {
		t.Errorf("after the container's end: %v", err)
	}
}
