package memorylimits

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/fakes/cgrouptest"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// node is a node of eight L40S, with the kernel's cgroups.
type node struct {
	t       *testing.T
	root    string
	lib     nvml.Interface
	uuids   []string
	cgroups Tree
	// parent is the cgroup that plays the pod's.
	parent string
	// state is where a Keeper stores its records.
	state string
}

// r615 is a version of the branch that introduced memory limits.
const r615 = "615.10"

func newNode(t *testing.T, driver string) *node {
	t.Helper()
	mount, parent := cgrouptest.Make(t)
	p, err := profile.Load("l40s-8")
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.Version = driver
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(root, "proc/self/cgroup")
	if err := errors.Join(os.MkdirAll(filepath.Dir(self), 0o755),
		os.WriteFile(self, []byte("0::/"+filepath.Base(parent)+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, root: root, lib: nvmlstate.New(root), parent: parent, cgroups: Tree{Root: mount, Self: self}, state: t.TempDir()}
	if r := n.lib.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	for i := range 2 {
		d, _ := n.lib.DeviceGetHandleByIndex(i)
		uuid, r := d.GetUUID()
		if r != nvml.SUCCESS {
			t.Fatal(r)
		}
		n.uuids = append(n.uuids, uuid)
	}
	return n
}

// keeper is the Keeper of a plugin that has just started.
func (n *node) keeper() *Keeper {
	n.t.Helper()
	k, unreadable, err := Open(Driver{NVML: n.lib, Cgroups: n.cgroups}, n.state)
	if err != nil || len(unreadable) > 0 {
		n.t.Fatal(unreadable, err)
	}
	return k
}

// container makes a container's cgroup, and returns its directory and the runtime's name for it.
func (n *node) container(id string) (directory, named string) {
	n.t.Helper()
	directory = filepath.Join(n.parent, id)
	if err := os.Mkdir(directory, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return directory, "/" + filepath.Base(n.parent) + "/" + id
}

// is checks the driver's reservation and maximum of GPU memory for a cgroup; 0 means none.
func (n *node) is(when, directory string, gpu int, soft, hard uint64) {
	n.t.Helper()
	d, r := n.lib.DeviceGetHandleByUUID(n.uuids[gpu])
	if r != nvml.SUCCESS {
		n.t.Fatal(r)
	}
	got, r := d.GetMemoryLimits_v1(directory)
	if r != nvml.SUCCESS && r != nvml.ERROR_NOT_FOUND {
		n.t.Fatal(r)
	}
	if got.SoftLimit != soft || got.HardLimit != hard {
		n.t.Errorf("%s: GPU %d reserves %d and lets it have %d, want %d and %d", when, gpu, got.SoftLimit, got.HardLimit, soft, hard)
	}
}

// uses makes this process use memory of a GPU, as a process of a cgroup.
func (n *node) uses(directory string, gpu int, bytes uint64) {
	n.t.Helper()
	id, err := state.CgroupOf(directory)
	if err != nil {
		n.t.Fatal(err)
	}
	file, err := state.Open(n.root)
	if err == nil {
		err = errors.Join(file.Update(func(b *state.Body) error {
			b.GPUs[gpu].Processes[0] = state.Process{PID: uint32(os.Getpid()), Namespace: state.PIDNamespace(), Memory: bytes,
				Cgroups: [state.MaxCgroups]uint64{id}}
			return nil
		}), file.Close())
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

const gib = 1 << 30

func TestKeeperLimitsAContainerUntilItsCgroupGoes(t *testing.T) {
	n := newNode(t, r615)
	k := n.keeper()
	if err := k.Available(n.uuids...); err != nil {
		t.Fatal(err)
	}
	directory, named := n.container("c0ffee")
	limits := []Limit{{n.uuids[0], 10 * gib}, {n.uuids[1], 20 * gib}}
	if err := k.Hold(t.Context(), Container{"c0ffee", named, "uid-1", "main"}, limits); err != nil {
		t.Fatal(err)
	}
	n.is("while it runs", directory, 0, 10*gib, 10*gib)
	n.is("while it runs", directory, 1, 20*gib, 20*gib)
	n.uses(directory, 0, 3*gib)
	want := []Use{{"uid-1", "main", n.uuids[0], 3 * gib}, {"uid-1", "main", n.uuids[1], 0}}
	if got := k.Used(); !slices.Equal(got, want) {
		t.Errorf("it uses %+v, want %+v", got, want)
	}
	for range 2 { // the runtime reports that it stopped, and that it was removed
		if err := k.Release(t.Context(), "c0ffee"); err != nil {
			t.Fatal(err)
		}
		n.is("when it has ended", directory, 0, 0, 10*gib)
		n.is("when it has ended", directory, 1, 0, 20*gib)
	}
	if files, err := filepath.Glob(filepath.Join(n.state, "*.limit")); err != nil || len(files) != 0 {
		t.Errorf("%v are kept of it (%v)", files, err)
	}
}

// The plugin may be killed at any moment, and containers end, start and run on without it.
func TestKeeperRecoversAfterACrash(t *testing.T) {
	n := newNode(t, r615)
	directories, names := map[string]string{}, map[string]string{}
	limits := []Limit{{n.uuids[0], 10 * gib}}
	before := n.keeper()
	for _, id := range []string{"runs", "ended", "gone", "late"} {
		directories[id], names[id] = n.container(id)
		if id == "late" {
			continue // it is started while the plugin is away
		}
		if err := before.Hold(t.Context(), Container{ID: id, Cgroup: names[id]}, limits); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(directories["gone"]); err != nil {
		t.Fatal(err)
	}
	after := n.keeper()
	for id, want := range map[string]bool{"runs": false, "late": true} {
		for range 2 {
			if late, err := after.Restore(t.Context(), Container{ID: id, Cgroup: names[id]}, limits); err != nil || late != want {
				t.Errorf("%s: late %t (%v), want %t", id, late, err, want)
			}
			want = false
		}
	}
	after.Keep(t.Context(), map[string]bool{"runs": true, "late": true})
	n.is("runs", directories["runs"], 0, 10*gib, 10*gib)
	n.is("late", directories["late"], 0, 10*gib, 10*gib)
	n.is("ended", directories["ended"], 0, 0, 10*gib)
	if files, err := filepath.Glob(filepath.Join(n.state, "*.limit")); err != nil || len(files) != 2 {
		t.Errorf("kept are %v (%v), want those of the two that run", files, err)
	}
}

// Where one GPU refuses, what was reserved on another GPU is released.
func TestKeeperDoesNotReserveMemoryAfterAFailure(t *testing.T) {
	n := newNode(t, r615)
	k := n.keeper()
	directory, named := n.container("c0ffee")
	for what, test := range map[string]struct {
		limits []Limit
		wrong  string
	}{
		"more than the GPU has": {[]Limit{{n.uuids[0], 10 * gib}, {n.uuids[1], 1000 * gib}}, "to 1073741824000 bytes of GPU " + n.uuids[1]},
		"a GPU that is none":    {[]Limit{{n.uuids[0], 10 * gib}, {"GPU-00000000-0000-0000-0000-000000000000", gib}}, "find GPU GPU-0000"},
	} {
		err := k.Hold(t.Context(), Container{ID: "c0ffee", Cgroup: named}, test.limits)
		if err == nil || !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: %v, want %q", what, err, test.wrong)
		}
		n.is(what, directory, 0, 0, 10*gib)
		if k.records.Len() != 0 {
			t.Errorf("%s: it is kept", what)
		}
	}
	if err := k.Hold(t.Context(), Container{ID: "c0ffee", Cgroup: named + "-gone"}, []Limit{{n.uuids[0], gib}}); !errors.Is(err, ErrCgroup) {
		t.Errorf("a cgroup that went: %v", err)
	}
}

// A limit that cannot be set again leaves what was set before, and its record: it is released when the container has ended.
func TestRestoreKeepsTheRecordWhenALimitCannotBeSetAgain(t *testing.T) {
	n := newNode(t, r615)
	k := n.keeper()
	directory, named := n.container("c0ffee")
	c := Container{ID: "c0ffee", Cgroup: named}
	if err := k.Hold(t.Context(), c, []Limit{{n.uuids[0], 10 * gib}, {n.uuids[1], 10 * gib}}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Restore(t.Context(), c, []Limit{{n.uuids[0], 10 * gib}, {n.uuids[1], 1000 * gib}}); err == nil {
		t.Fatal("more than the GPU has was set")
	}
	n.is("while it runs", directory, 0, 10*gib, 10*gib)
	n.is("while it runs", directory, 1, 10*gib, 10*gib)
	if err := n.keeper().Release(t.Context(), "c0ffee"); err != nil {
		t.Fatal(err)
	}
	n.is("when it has ended", directory, 0, 0, 10*gib)
	n.is("when it has ended", directory, 1, 0, 10*gib)
}

// go-nvml ends the process when it calls a function that the library lacks.
func TestKeeperDoesNotCallAnOldDriver(t *testing.T) {
	n := newNode(t, "570.158.01")
	k := n.keeper()
	_, named := n.container("c0ffee")
	c, limits := Container{ID: "c0ffee", Cgroup: named}, []Limit{{n.uuids[0], gib}}
	_, restored := k.Restore(t.Context(), c, limits)
	for what, err := range map[string]error{"available": k.Available(n.uuids...), "hold": k.Hold(t.Context(), c, limits),
		"restore": restored} {
		if err == nil || !strings.Contains(err.Error(), "it came with r615") || !strings.Contains(err.Error(), "570.158.01") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An older driver does not have the limits that an r615 set: the record goes when its container does.
func TestKeeperForgetsRecordsOfAnotherDriver(t *testing.T) {
	n := newNode(t, r615)
	_, named := n.container("c0ffee")
	if err := n.keeper().Hold(t.Context(), Container{ID: "c0ffee", Cgroup: named}, []Limit{{n.uuids[0], gib}}); err != nil {
		t.Fatal(err)
	}
	n.lib = newNode(t, "570.158.01").lib
	k := n.keeper()
	if err := k.Release(t.Context(), "c0ffee"); err != nil || k.records.Len() != 0 {
		t.Errorf("%d records (%v), want none", k.records.Len(), err)
	}
}

func TestKeeperNamesAGPUWithoutLimits(t *testing.T) {
	n := newNode(t, r615)
	p, err := profile.Load("gb10-spark") // its GPU uses the machine's memory and has none of its own
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.Version = r615
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	n.lib = nvmlstate.New(root)
	if r := n.lib.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	d, _ := n.lib.DeviceGetHandleByIndex(0)
	uuid, _ := d.GetUUID()
	if err := n.keeper().Available(uuid); err == nil || !strings.Contains(err.Error(), "does not limit the memory of GPU "+uuid) {
		t.Errorf("got %v", err)
	}
}

// Where systemd manages a container's cgroup, it removes it as soon as it is empty; the runtime reports the end later.
func TestKeeperFreesMemoryWithTheLastProcess(t *testing.T) {
	n := newNode(t, r615)
	k := n.keeper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx, &filewatch.Watcher{}) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	directory, named := n.container("c0ffee")
	process := exec.CommandContext(t.Context(), "/bin/cat")
	in, err := process.StdinPipe() // it ends when this is closed
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "cgroup.procs"), fmt.Appendln(nil, process.Process.Pid), 0o600); err != nil {
		t.Fatal(errors.Join(err, in.Close(), process.Wait()))
	}
	if err := k.Hold(t.Context(), Container{ID: "c0ffee", Cgroup: named}, []Limit{{n.uuids[0], gib}}); err != nil {
		t.Fatal(err)
	}
	n.is("while it runs", directory, 0, gib, gib)
	if err := errors.Join(in.Close(), process.Wait()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); k.records.Len() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	n.is("when it has ended", directory, 0, 0, gib)
}

func TestKeeperSetsADamagedRecordAside(t *testing.T) {
	n := newNode(t, r615)
	if err := os.WriteFile(filepath.Join(n.state, "c0ffee.limit"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, unreadable, err := Open(Driver{NVML: n.lib, Cgroups: n.cgroups}, n.state)
	if err != nil || len(unreadable) != 1 {
		t.Fatalf("%v (%v), want the one set aside", unreadable, err)
	}
	_, named := n.container("c0ffee")
	if err := k.Hold(t.Context(), Container{ID: "c0ffee", Cgroup: named}, []Limit{{n.uuids[0], gib}}); err != nil {
		t.Error(err)
	}
}
