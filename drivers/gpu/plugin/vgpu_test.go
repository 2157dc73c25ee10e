package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// A virtual machine with vGPUs is a node as any other. MIG is its host's.
func TestPluginOffersVGPUsOfVirtualMachine(t *testing.T) {
	p, err := profile.Load("a10")
	if err != nil {
		t.Fatal(err)
	}
	p.GPUs.Model.Virtualization = "vgpu"
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	for _, d := range []device{
		{name: "gpu-0"}, {name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "1Gi", "cores": "10"}},
	} {
		c := b.claim("u-"+d.name, nil, d)
		if e := b.edits(c, b.mustPrepare(c)...); !strings.Contains(nodes(e), "nvidia0") {
			t.Errorf("%s gets the device nodes %s", d.name, nodes(e))
		}
		if problem := b.unprepare(c); problem != "" {
			t.Error(problem)
		}
	}
	b.label("mig_1g.5gb")
	b.awaitCondition(corev1.ConditionFalse, "FormNotOnGPU", "it is a vGPU, and MIG is configured on its host; it is offered whole")
	// The machine's own driver root has no nvidia-smi that could set them.
	slices := b.claim("u-slices", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)},
		device{name: "gpu-0"})
	if _, says := b.prepare(slices); !strings.Contains(says, "time slices are configured on its host") {
		t.Errorf("time slices are refused with %q", says)
	}
}
