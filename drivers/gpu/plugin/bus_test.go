package plugin

import (
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpufabric.io/drivers/gpu/gputest"
)

func TestPluginOffersGPUThatIsPluggedIn(t *testing.T) {
	m := gputest.New(t, 1)
	commands := mpsControl(t, m)
	b := newBench(t, m)
	b.stop()
	b.recheck, b.enter = 20*time.Millisecond, plainly
	b.start()
	b.taints("gpu-0", "")
	held := b.claim("u1", []string{gpuConfig(`{"strategy":"MPS"}`)}, device{name: "gpu-0"})
	b.mustPrepare(held)
	commands()

	m.Plug(t)
	b.taints("gpu-1", "")
	b.event("Node", "GPUsPluggedIn")
	if _, err := b.kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1"}))
	// The claim keeps its device, and its MPS daemon never ended.
	b.refused(b.claim("u3", nil, device{name: "gpu-0"}), "claim default/claim-u1")
	if printed := commands(); printed != "" {
		t.Errorf("the MPS control daemon was told %q", printed)
	}
	if problem := b.unprepare(held); problem != "" {
		t.Error(problem)
	}
	b.mustPrepare(b.claim("u4", nil, device{name: "gpu-0"}))
}

// When the driver is installed after the role started, its GPUs are not new: NVML knows them, and nothing has to start again.
func TestGPUsThatComeWithTheDriverAreNotPluggedIn(t *testing.T) {
	m := gputest.New(t, 2)
	directory, away := m.Path("sys/bus/pci/drivers/nvidia"), m.Path("sys/bus/pci/drivers/away")
	if err := os.Rename(directory, away); err != nil {
		t.Fatal(err)
	}
	b := newBus(m.Path("sys"))
	if err := os.Rename(away, directory); err != nil {
		t.Fatal(err)
	}
	b.settle()
	for range 3 {
		if came := b.came(); len(came) > 0 {
			t.Errorf("%v came", came)
		}
	}
}

func TestBusReportsNewFunctionOnce(t *testing.T) {
	m := gputest.New(t, 2)
	b := newBus(m.Path("sys"))
	link := m.Path("sys/bus/pci/drivers/nvidia/0000:11:00.0")
	target, err := os.Readlink(link)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"nothing came", func() {}, nil},
		{"one left", func() { must(os.Remove(link)) }, nil},
		{"it is back, and may not be ready", func() { must(os.Symlink(target, link)) }, nil},
		{"it stays", func() {}, []string{"0000:11:00.0"}},
		{"and is known", func() {}, nil},
		{"the driver's own files are no GPUs", func() {
			must(os.WriteFile(m.Path("sys/bus/pci/drivers/nvidia/bind"), nil, 0o600))
			must(os.Symlink("../../../../module/nvidia", m.Path("sys/bus/pci/drivers/nvidia/module")))
		}, nil},
		{"nor later", func() {}, nil},
		{"the driver is unloaded", func() { must(os.Rename(m.Path("sys/bus/pci/drivers/nvidia"), m.Path("sys/gone"))) }, nil},
		{"it is loaded again", func() { must(os.Rename(m.Path("sys/gone"), m.Path("sys/bus/pci/drivers/nvidia"))) }, nil},
		{"with all its GPUs", func() {}, []string{"0000:10:00.0", "0000:11:00.0"}},
	} {
		step.change()
		if got := b.came(); !slices.Equal(got, step.want) {
			t.Errorf("%s: %v came, want %v", step.name, got, step.want)
		}
	}
}
