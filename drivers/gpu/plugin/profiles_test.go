package plugin

import (
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/gputest"
)

func (b *bench) profile(name string, spec map[string]any) {
	b.Helper()
	b.create("vgpuprofiles", "VGPUProfile", name, spec)
}

func TestAProfileCutsTheGPUsThatItSelects(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	b.profile("elsewhere", map[string]any{"mode": "Software", "memory": "10Gi",
		"nodeSelector": map[string]any{"matchLabels": map[string]any{"x": "y"}}})
	b.profile("wrong", map[string]any{"mode": "Software"})
	b.profile("a100-10g", map[string]any{"mode": "Software", "memory": "10Gi", "cores": int64(25), "split": int64(4)})
	b.taints("gpu-1-shared-a100-10g", "") // waits for it, and so for what the profiles before it do
	for _, s := range b.slices() {
		for _, d := range s.Spec.Devices {
			if strings.HasSuffix(d.Name, "-elsewhere") || strings.HasSuffix(d.Name, "-wrong") {
				t.Errorf("%s is published, of a profile that does not select this node or cannot be used", d.Name)
			}
			if d.Name != "gpu-1-shared-a100-10g" {
				continue
			}
			if a := d.Attributes["vgpuProfile"].StringValue; a == nil || *a != "a100-10g" {
				t.Errorf("vgpuProfile is %v", a)
			}
			for name, want := range map[string]string{"memory": "10Gi", "cores": "25", "slots": "1"} {
				c := d.Capacity[qualified(name)]
				if c.RequestPolicy == nil || c.RequestPolicy.Default.Cmp(parse(want)) != 0 {
					t.Errorf("a share has %+v of %s, want %s", c.RequestPolicy, name, want)
				}
			}
		}
	}
	// A share is prepared and held as such, whether its profile is known or not.
	c := b.claim("u1", nil, device{name: "gpu-1-shared-gone", share: "s1", capacity: map[string]string{"memory": "10Gi", "cores": "25"}})
	b.mustPrepare(c)
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1-shared-a100-10g", share: "s2",
		capacity: map[string]string{"memory": "10Gi", "cores": "25"}}))
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
}
