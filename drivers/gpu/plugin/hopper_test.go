package plugin

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/fakes/nvmlstate"
)

// From Hopper on the MIG mode changes at once (NVIDIA's MIG user guide, Deployment Considerations). A claim of a whole GPU could
// switch it off while an administrator is about to make instances.
func TestHopperGPUIsNotOfferedWholeInAdministratorsMIGMode(t *testing.T) {
	for _, c := range []struct {
		profile, partitioned, forms string
		offered                     []string
	}{
		{"h100-hgx", "gpu-0-mig-1g10gb-19-3", "flexible", []string{"mig"}},
		{"h100-hgx", "", "whole", nil},
		{"b200-hgx", "", "whole", nil},
	} {
		t.Run(c.profile+" offered "+c.forms, func(t *testing.T) {
			t.Parallel()
			root := renderFake(t, c.profile)
			if out, err := administrator(t, root, "-i", "0", "-mig", "1"); err != nil {
				t.Fatal(out, err)
			}
			b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root,
				func(o *Options) { o.Forms = `{"default": {"form": "` + c.forms + `"}}` })
			b.stop()
			b.recheck = 50 * time.Millisecond
			b.start()
			b.taints("gpu-1", "")
			if got := b.forms("gpu-0"); !slices.Equal(got, c.offered) {
				t.Errorf("a GPU in MIG mode without instances is offered as %v, want %v", got, c.offered)
			}
			stays := func(when string) {
				t.Helper()
				if current, _ := mode(t, root, 0); !current {
					t.Errorf("%s: the administrator's MIG mode is off", when)
				}
			}
			// Allocated just before the mode was seen.
			if _, problem := b.prepare(b.claim("u1", nil, device{name: "gpu-0"})); !strings.Contains(problem, "-mig 0") {
				t.Errorf("a claim of the whole GPU: %q", problem)
			}
			stays("after a claim of the whole GPU")
			if c.partitioned != "" {
				claim := b.claim("u2", nil, device{name: c.partitioned})
				b.mustPrepare(claim)
				if problem := b.unprepare(claim); problem != "" {
					t.Error(problem)
				}
				b.stop()
				b.start()
				b.taints("gpu-1", "")
				if got := b.forms("gpu-0"); !slices.Equal(got, c.offered) {
					t.Errorf("after a claim and a restart it is offered as %v, want %v", got, c.offered)
				}
				stays("after a claim of a MIG device and a restart")
				claim = b.claim("u4", nil, device{name: c.partitioned})
				b.mustPrepare(claim)
				b.stop()
				b.start()
				if problem := b.unprepare(claim); problem != "" {
					t.Error(problem)
				}
				b.taints("gpu-1", "")
				if got := b.forms("gpu-0"); !slices.Equal(got, c.offered) {
					t.Errorf("after a restart under a claim it is offered as %v, want %v", got, c.offered)
				}
				stays("after a restart under a claim")
			}
			if out, err := administrator(t, root, "-i", "0", "-mig", "0"); err != nil {
				t.Fatal(out, err)
			}
			b.await(func() bool { return slices.Contains(b.forms("gpu-0"), "gpu") }, "the GPU is offered whole again")
			b.mustPrepare(b.claim("u3", nil, device{name: "gpu-0"}))
		})
	}
}

// A mode that claims switched on stays theirs across restarts: the GPU is whole again for the next claim.
func TestHopperGPUIsOfferedWholeAfterMIGModeOfClaim(t *testing.T) {
	root := renderFake(t, "h100-hgx")
	b := benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
	c := b.claim("u1", nil, device{name: "gpu-0-mig-1g10gb-19-3"})
	b.mustPrepare(c)
	b.stop()
	b.start()
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	b.stop()
	b.start()
	if current, _ := mode(t, root, 0); !current {
		t.Log("the mode is off already; the test shows little")
	}
	b.taints("gpu-1", "")
	if got := b.forms("gpu-0"); !slices.Contains(got, "gpu") {
		t.Errorf("it is offered as %v", got)
	}
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-0"}))
	if current, _ := mode(t, root, 0); current {
		t.Error("the whole GPU was handed out in MIG mode")
	}
}
