package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/state"
)

func TestOfADriversTroublesTheStrongestIsReported(t *testing.T) {
	var d driverState
	expect := func(reason string) {
		t.Helper()
		if got := d.now.Now(); got.reason != reason {
			t.Errorf("said %+v, want %q", got, reason)
		}
	}
	d.set(troubleFiles, "", "")
	expect("") // nothing is known yet
	d.set(troubleStart, "DriverNotLoaded", "no module")
	expect("DriverNotLoaded")
	d.runs("580.95.05")
	expect("DriverReady")
	set := &edits.Set{}
	d.found(set, nil, "no libcuda")
	expect("DriverIncomplete")
	d.found(set, errors.New("no /dev/nvidia-uvm"), "no libcuda")
	expect("DeviceNodeMissing")
	d.set(troubleGone, "DriverNotFound", "files were removed")
	expect("DriverNotFound")
	d.set(troubleDrained, "GPUsDrained", "drained")
	expect("GPUsDrained")
	d.runs("580.95.06")
	expect("DriverReady")
}

// When a driver container is replaced, pods that use the driver lose its files.
func TestNodeHasConditionWhenDriverFails(t *testing.T) {
	root := renderFake(t, "h100-hgx")
	library := filepath.Join(root, "driver/usr/lib64/libnvidia-ml.so.1")
	put := func() {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(library), 0o755), os.WriteFile(library, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put()
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	b.stop()
	b.recheck = 50 * time.Millisecond
	b.start()
	b.awaitConditionOf(DriverCondition, corev1.ConditionFalse, "DriverIncomplete", "libcuda")
	c := b.claim("u1", nil, device{name: "gpu-0"})
	b.mustPrepare(c)
	if err := os.Rename(filepath.Join(root, "driver"), filepath.Join(root, "away")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "nowhere"), filepath.Join(root, "driver")); err != nil {
		t.Fatal(err)
	}
	b.awaitConditionOf(DriverCondition, corev1.ConditionFalse, "DriverNotFound", "which is not there")
	if problem := b.unprepare(c); problem != "" {
		t.Errorf("a claim could not be given back: %s", problem)
	}
	if err := errors.Join(os.Remove(filepath.Join(root, "driver")),
		os.Rename(filepath.Join(root, "away"), filepath.Join(root, "driver"))); err != nil {
		t.Fatal(err)
	}
	b.awaitConditionOf(DriverCondition, corev1.ConditionFalse, "DriverIncomplete", "libcuda")
	if err := fault.Apply(root, "uvm-unload", nil); err != nil {
		t.Fatal(err)
	}
	if _, problem := b.prepare(b.claim("u2", nil, device{name: "gpu-1"})); problem == "" {
		t.Error("a claim was prepared without /dev/nvidia-uvm")
	}
	b.awaitConditionOf(DriverCondition, corev1.ConditionFalse, "DeviceNodeMissing", "/dev/nvidia-uvm")
}

func TestNodeHasConditionWhenDriverIsNotLoaded(t *testing.T) {
	root := renderFake(t, "h100-hgx")
	if err := os.Remove(state.Path(root)); err != nil { // as the fakes represent a driver that is not loaded
		t.Fatal(err)
	}
	b := &bench{TB: t, client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})}
	b.options.NodeName, b.options.SysfsRoot, b.options.DriverRoot = "n1", filepath.Join(root, "sys"), filepath.Join(root, "driver")
	b.options.DevRoot, b.options.ProcDevices = filepath.Join(root, "dev"), filepath.Join(root, "proc/devices")
	b.options.CDIRoot, b.options.KubeletRoot, b.options.StateDir = t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "state")
	b.options.MIG, b.options.UnknownMIG, b.options.ShareCores, b.options.Limits = "dynamic", "keep", 10, limitsNone
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	s := &starter{options: b.options, lib: nvmlstate.New(root), client: b.client, enter: programs.Reexec(role, driverProgram)}
	go func() { ended <- s.run(ctx) }()
	b.awaitConditionOf(DriverCondition, corev1.ConditionFalse, "DriverNotLoaded", "not loaded")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNodeHasNoDriverConditionWithoutGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		var d driverState
		d.set(troubleStart, "DriverNotFound", "no driver")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d.run(ctx, conditions{client: client, node: "n1"}, pci.NewFS(t.TempDir()))
		for _, action := range client.Actions() {
			t.Errorf("the plugin asked the API server for %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	})
}
