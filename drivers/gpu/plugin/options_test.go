package plugin

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/node/options"
)

func TestEveryWrongFlagIsNamed(t *testing.T) {
	o := Options{
		Node: options.Node{CDIRoot: "/cdi", KubeletRoot: "/kubelet", StateDir: "/state", NodeName: "n1"},
		MIG:  "on", UnknownMIG: "forget", ShareCores: 101, ShareMemory: "4GB", DevicePlugin: []string{"all", "GPU-0aa1bb2c-3d4e", "0", "GPU-x"},
	}
	err := o.Validate()
	if err == nil {
		t.Fatal("none is")
	}
	for _, want := range []string{"--mig", "--unknown-mig-instances", "--share-cores 101", "--share-memory", `--device-plugin "0"`,
		`--device-plugin "GPU-x"`, "--device-plugin=all,GPU-0aa1bb2c-3d4e,0,GPU-x: all includes every GPU", "--handover-dir"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	for _, right := range []string{`"all"`, `"GPU-0aa1bb2c`} {
		if strings.Contains(err.Error(), right) {
			t.Errorf("%s is refused: %v", right, err)
		}
	}
}

// A failure beside the plugin ends the role; the plugin that it interrupts only knows that it was interrupted.
func TestRoleReportsCauseOfItsEnd(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	b.stop()
	b.options.MetricsAddress = "nonsense"
	s := &starter{options: b.options, lib: b.lib, client: fake.NewClientset(), objects: b.objects, enter: programs.Reexec(role, driverProgram)}
	if err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), `--metrics-address "nonsense"`) {
		t.Errorf("it says %v", err)
	}
}
