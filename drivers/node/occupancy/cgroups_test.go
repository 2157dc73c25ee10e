package occupancy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const uid = types.UID("3f2a0c1e-1111-4222-8333-94445566aabb")

// cgroup makes a cgroup of a container with processes below a root. Version 2 has the file cgroup.events in every cgroup.
func cgroup(t *testing.T, root, below string, processes string) {
	t.Helper()
	directory := filepath.Join(root, below)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "cgroup.procs"), []byte(processes), 0o644); err != nil {
		t.Fatal(err)
	}
}

func populated(t *testing.T, root, below, yes string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, below, Events), []byte("populated "+yes+"\nfrozen 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFindReturnsThePodsCgroupForEachDriverAndVersion(t *testing.T) {
	const container = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	systemd := "kubepods-burstable-pod3f2a0c1e_1111_4222_8333_94445566aabb.slice"
	for name, c := range map[string]struct {
		v2        bool
		pod, leaf string
	}{
		"v2, systemd, containerd": {true, "kubepods.slice/kubepods-burstable.slice/" + systemd, "cri-containerd-" + container + ".scope"},
		"v2, systemd, CRI-O":      {true, "kubepods.slice/kubepods-burstable.slice/" + systemd, "crio-" + container + ".scope"},
		"v2, cgroupfs":            {true, "kubepods/burstable/pod" + string(uid), container},
		"v2, guaranteed":          {true, "kubepods/pod" + string(uid), container},
		"v2, kind": {true, "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-" + systemd,
			"cri-containerd-" + container + ".scope"},
		"v2, rootless": {true, "user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-burstable.slice/" + systemd,
			"cri-containerd-" + container + ".scope"},
		"v1, systemd":  {false, "memory/kubepods.slice/kubepods-burstable.slice/" + systemd, "cri-containerd-" + container + ".scope"},
		"v1, cgroupfs": {false, "memory/kubepods/besteffort/pod" + string(uid), container},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			leaf := filepath.Join(c.pod, c.leaf)
			cgroup(t, root, leaf, "17\n18\n")
			cgroup(t, root, "system.slice/cron.service", "1\n")
			// A container that names a cgroup of its own after another tenant's pod.
			cgroup(t, root, filepath.Join(filepath.Dir(c.pod), "podother", c.leaf, "kubepods/pod"+string(uid)), "99\n")
			if c.v2 {
				cgroup(t, root, "", "")
				if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
				populated(t, root, c.pod, "1")
			}
			tree := &Cgroups{Root: root}
			for range 2 { // the second time the parent is known
				if found, err := tree.Find(t.Context(), uid); err != nil || found[uid] != c.pod {
					t.Fatalf("found %q (%v), want %q", found[uid], err, c.pod)
				}
			}
			if found, err := tree.Find(t.Context(), "another"); err != nil || len(found) != 0 {
				t.Errorf("another pod has %v (%v)", found, err)
			}
			if live, err := tree.Live(c.pod); err != nil || !live {
				t.Errorf("with processes: live %t, %v", live, err)
			}
			if containers := tree.Containers(c.pod); !slices.Equal(containers, []Container{{ID: container, Processes: 2}}) {
				t.Errorf("containers %v", containers)
			}
			cgroup(t, root, leaf, "")
			if c.v2 {
				populated(t, root, c.pod, "0")
			}
			if live, err := tree.Live(c.pod); err != nil || live {
				t.Errorf("without processes: live %t, %v", live, err)
			}
			if err := os.RemoveAll(filepath.Join(root, c.pod)); err != nil {
				t.Fatal(err)
			}
			if live, err := tree.Live(c.pod); err != nil || live {
				t.Errorf("after its removal: live %t, %v", live, err)
			}
		})
	}
}

func TestLiveReturnsAnErrorWithoutCgroups(t *testing.T) {
	tree := &Cgroups{Root: filepath.Join(t.TempDir(), "missing")}
	if live, err := tree.Live("kubepods/podx"); err == nil || live {
		t.Errorf("live %t, %v: a tree that cannot be read proves nothing", live, err)
	}
}

func TestLiveCountsAnUnreadableCgroupAsLive(t *testing.T) {
	for name, file := range map[string]string{"version 2": Events, "version 1": "cgroup.procs"} {
		root := t.TempDir()
		tree := &Cgroups{Root: root}
		pod := "kubepods/pod" + string(uid)
		// A file that leads to itself cannot be opened, by root neither.
		if err := errors.Join(os.MkdirAll(filepath.Join(root, pod), 0o755), os.Symlink(file, filepath.Join(root, pod, file))); err != nil {
			t.Fatal(err)
		}
		if live, err := tree.Live(pod); err == nil || !live {
			t.Errorf("%s: live %t, %v", name, live, err)
		}
		if sight, err := tree.Look(t.Context(), uid); err == nil || !sight.Running || sight.Known {
			t.Errorf("%s: %+v, %v", name, sight, err)
		}
	}
}

func TestLookReportsAPodsEndOnlyWhereOtherPodsHaveCgroups(t *testing.T) {
	root := t.TempDir()
	tree := &Cgroups{Root: root}
	look := func(want Sight, text string) {
		t.Helper()
		if got, err := tree.Look(t.Context(), uid); err != nil || !cmp.Equal(got, want) || got.String() != text {
			t.Errorf("%+v, %s (%v), want %+v, %s", got, got, err, want, text)
		}
	}
	cgroup(t, root, "", "")
	populated(t, root, "", "1")
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cgroup(t, root, "system.slice/containerd.service", "1\n")
	look(Sight{}, "a process")
	cgroup(t, root, "kubepods/podother", "")
	look(Sight{Known: true}, "a process")
	cgroup(t, root, "kubepods/pod"+string(uid)+"/c0ffee", "5\n6\n")
	populated(t, root, "kubepods/pod"+string(uid), "1")
	look(Sight{Running: true, Known: true, Containers: []Container{{ID: "c0ffee", Processes: 2}}}, "container c0ffee (2 processes)")
	populated(t, root, "kubepods/pod"+string(uid), "0")
	look(Sight{Known: true}, "a process")
	if err := os.RemoveAll(filepath.Join(root, "kubepods")); err != nil {
		t.Fatal(err)
	}
	look(Sight{}, "a process") // the tree is not to be seen any more
}

// A look that ends early has not seen every pod. The known parents of pods are not enough: a class of quality of service gets its cgroup
// with the first pod.
func TestLookReturnsAnErrorWhenItEndsEarly(t *testing.T) {
	root := t.TempDir()
	tree := &Cgroups{Root: root}
	cgroup(t, root, "pids/kubepods/burstable/podother/c0ffee", "1\n")
	if sight, err := tree.Look(t.Context(), "other"); err != nil || !sight.Running {
		t.Fatalf("%+v, %v", sight, err)
	}
	cgroup(t, root, "pids/kubepods/pod"+string(uid)+"/c0ffee", "5\n")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if sight, err := tree.Look(ended, uid); err == nil || sight.Known || !sight.Running {
		t.Errorf("a pod that runs was not looked for: %+v, %v", sight, err)
	}
	if sight, err := tree.Look(t.Context(), uid); err != nil || !sight.Running {
		t.Errorf("%+v, %v", sight, err)
	}
	if sight, err := tree.Look(ended, uid); err != nil || !sight.Running {
		t.Errorf("its parent is known by now: %+v, %v", sight, err)
	}
}

func TestLookReturnsAnErrorWhereAContainerCannotBeRead(t *testing.T) {
	root := t.TempDir()
	tree := &Cgroups{Root: root}
	pod := "pids/kubepods/pod" + string(uid)
	cgroup(t, root, pod+"/c0ffee", "1\n")
	cgroup(t, root, pod+"/decaf", "")
	file := filepath.Join(root, pod, "decaf", "cgroup.procs")
	err := errors.Join(os.WriteFile(filepath.Join(root, pod, tasks), []byte("1\n"), 0o600), os.Remove(file), os.Symlink(file, file))
	if err != nil {
		t.Fatal(err)
	}
	sight, err := tree.Look(t.Context(), uid)
	if err == nil || sight.Known || !sight.Running || !slices.Equal(sight.Containers, []Container{{ID: "c0ffee", Processes: 1}}) {
		t.Errorf("%+v, %v", sight, err)
	}
}

func TestLackingIsAnErrorThatPasses(t *testing.T) {
	for err, want := range map[error]bool{unix.EMFILE: true, unix.ENFILE: true, unix.ENOMEM: true, unix.ENOENT: false, unix.EACCES: false} {
		if got := lacking(&os.PathError{Op: "open", Path: "kubepods", Err: err}); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

func TestDecideHasOneStateForEachRow(t *testing.T) {
	for name, c := range map[string]struct {
		facts Facts
		want  State
	}{
		"prepared":                         {Facts{Known: true}, Held},
		"prepared, pod runs":               {Facts{Users: true, Known: true}, Held},
		"unprepared, pod ended":            {Facts{Requested: true, Known: true}, Free},
		"unprepared, pod runs":             {Facts{Requested: true, Users: true, Known: true}, Releasing},
		"unprepared, pods unknown":         {Facts{Requested: true}, Free},
		"unprepared, one of the pods runs": {Facts{Requested: true, Users: true}, Releasing},
		"gone, pod ended":                  {Facts{Gone: true, Known: true}, Free},
		"gone, pod runs":                   {Facts{Gone: true, Users: true, Known: true, GoneFor: time.Hour}, Releasing},
		"gone just now, pods unknown":      {Facts{Gone: true, GoneFor: Patience - 1}, Releasing},
		"gone for long, pods unknown":      {Facts{Gone: true, GoneFor: Patience}, Free},
		"gone and unprepared":              {Facts{Gone: true, Requested: true}, Free},
		"gone, before the last boot":       {Facts{Gone: true, Users: true, Rebooted: true}, Free},
		"prepared before the last boot":    {Facts{Rebooted: true}, Held},
		"forced, pod runs":                 {Facts{Requested: true, Users: true, Known: true, Forced: true}, Free},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Decide(c.facts); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A role has a PID namespace of its own. In it cgroup.procs of version 1 is empty for all other containers, and pids.current is not.
func TestLookSeesProcessesOfOtherPIDNamespacesInVersion1(t *testing.T) {
	root := t.TempDir()
	pod := filepath.Join("kubepods/burstable", "pod"+string(uid))
	for _, hierarchy := range []string{"memory", "pids"} {
		cgroup(t, root, filepath.Join(hierarchy, pod, "c0ffee"), "")
	}
	number := func(below, tasks string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "pids", below, "pids.current"), []byte(tasks), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree := &Cgroups{Root: root}
	for _, tasks := range []string{"2\n", "0\n"} {
		number(pod, tasks)
		number(filepath.Join(pod, "c0ffee"), tasks)
		want := Sight{Known: true}
		if tasks != "0\n" {
			want = Sight{Known: true, Running: true, Containers: []Container{{ID: "c0ffee", Processes: 2}}}
		}
		if got, err := tree.Look(t.Context(), uid); err != nil || !cmp.Equal(got, want) {
			t.Errorf("with %q tasks: %+v (%v), want %+v", tasks, got, err, want)
		}
	}
}
