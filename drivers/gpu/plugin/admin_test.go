package plugin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/gpu/gputest"
)

func TestPrepareShowsEveryInstanceWhenClaimHasAdminAccess(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	g := b.machine.GPUs[1]
	empty := b.claim("u1", nil, device{name: "gpu-1-mig-1g5gb-19-0", admin: true})
	if got, want := nodes(b.edits(empty, b.mustPrepare(empty)[0])), "nvidia-uvm nvidia1 nvidiactl"; got != want {
		t.Errorf("before an instance is made: nodes %s, want %s", got, want)
	}
	if made := g.Instances(); len(made) > 0 {
		t.Errorf("admin access makes %v", made)
	}
	tenant := b.claim("u2", nil, device{name: "gpu-1-mig-1g5gb-19-3"}, device{name: "gpu-1-mig-3g20gb-9-4"})
	b.mustPrepare(tenant)
	const instances = "nvidia-caps/nvidia-cap147 nvidia-caps/nvidia-cap148 nvidia-caps/nvidia-cap156 nvidia-caps/nvidia-cap157 "
	for _, c := range []struct{ uid, device, want string }{
		{"u3", "gpu-1-mig-1g5gb-19-0", instances + "nvidia-uvm nvidia1 nvidiactl"},
		{"u4", "gpu-1", instances + "nvidia-uvm nvidia1 nvidiactl"},
	} {
		claim := b.claim(c.uid, nil, device{name: c.device, admin: true})
		if got := nodes(b.edits(claim, b.mustPrepare(claim)[0])); got != c.want {
			t.Errorf("%s: nodes %s, want %s", c.device, got, c.want)
		}
		if problem := b.unprepare(claim); problem != "" {
			t.Error(problem)
		}
	}
	if diff := cmp.Diff([]string{"19@3", "9@4"}, g.Instances()); diff != "" {
		t.Errorf("the tenant's instances (-want +got):\n%s", diff)
	}
}

// The administrator cuts the GPUs of this node. A pod that monitors sees all instances, also of a GPU that a tenant has, and holds none.
func TestPrepareShowsAnAdministratorsInstancesWhenClaimHasAdminAccess(t *testing.T) {
	m := gputest.New(t, 2)
	administered(t, m.GPUs[1], 14, 0)
	administered(t, m.GPUs[1], 19, 4)
	b := newBench(t, m, func(o *Options) { o.MIG = "static" })
	monitor := b.claim("u1", nil, device{name: "gpu-1-mig-2g10gb-14-0", admin: true}, device{name: "gpu-1-mig-1g5gb-19-4", admin: true})
	prepared := b.mustPrepare(monitor)
	for i := range prepared {
		// Each instance has a node of its GPU instance and one of its compute instance.
		if got := nodes(b.edits(monitor, prepared[i])); strings.Count(got, "nvidia-caps/") != 4 {
			t.Errorf("device %d: nodes %s, want those of both instances", i, got)
		}
	}
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1-mig-2g10gb-14-0"})) // nobody holds it
	if problem := b.unprepare(monitor); problem != "" {
		t.Error(problem)
	}
	if diff := cmp.Diff([]string{"14@0", "19@4"}, m.GPUs[1].Instances()); diff != "" {
		t.Errorf("the administrator's instances (-want +got):\n%s", diff)
	}
}

func TestPrepareDoesNotSetLimitOfShareWhenClaimHasAdminAccess(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	claim := b.claim("u1", nil, device{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "1Gi", "cores": "10"},
		admin: true})
	made := b.edits(claim, b.mustPrepare(claim)[0])
	for _, env := range made.Env {
		if len(env) > 4 && env[:5] == "CUDA_" {
			t.Errorf("a limit for a container that monitors: %s", env)
		}
	}
}

// A pod may compute on a GPU and, by the same claim, observe all of the node's.
func TestPrepareGivesAGPUThatTheClaimObservesToo(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	claim := b.claim("u1", nil, device{name: "gpu-0"}, device{name: "gpu-0", request: "all", admin: true},
		device{name: "gpu-1", request: "all", admin: true})
	prepared := b.mustPrepare(claim)
	for i, want := range []string{"nvidia-uvm nvidia0 nvidiactl", "nvidia-uvm nvidia0 nvidiactl", "nvidia1"} {
		if got := nodes(b.edits(claim, prepared[i])); got != want {
			t.Errorf("device %d: nodes %s, want %s", i, got, want)
		}
	}
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1"})) // nobody holds it
	if problem := b.unprepare(claim); problem != "" {
		t.Error(problem)
	}
	b.mustPrepare(b.claim("u3", nil, device{name: "gpu-0"}))
}
