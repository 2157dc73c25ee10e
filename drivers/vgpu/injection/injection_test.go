package injection

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/vgpu/annotation"
)

const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

func hami(t *testing.T) Limiter {
	root := t.TempDir()
	return Limiter{Backend: HAMiCore, Directory: "/opt/vgpu", Containers: filepath.Join(root, "containers"),
		Locks: filepath.Join(root, "locks"), Accounts: filepath.Join(root, "accounts")}
}

func TestEditsLimitAContainerToItsShare(t *testing.T) {
	l := hami(t)
	limits := Limits([]annotation.Share{{UUID: uuid, Memory: 1024, Cores: 50}, {UUID: other, Memory: 0, Cores: 30}}, 10, false, order)
	got, err := l.Edits(Container{"uid-1", "main"}, limits)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "CUDA_DEVICE_SM_LIMIT=30",
		"NVIDIA_VISIBLE_DEVICES=" + uuid + "," + other, "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/vgpu/cudevshr.cache",
		"CUDA_DEVICE_ORDER=PCI_BUS_ID",
	}
	if diff := cmp.Diff(want, got.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	mounts := map[string]string{}
	for _, m := range got.Mounts {
		mounts[m.ContainerPath] = m.HostPath
	}
	wantMounts := map[string]string{
		"/tmp/vgpu": filepath.Join(l.Containers, "uid-1_main"), "/tmp/vgpulock": filepath.Join(l.Locks, "uid-1_main"),
		"/overrideEnv":               l.empty(),
		"/usr/local/vgpu/libvgpu.so": "/opt/vgpu/libvgpu.so", "/etc/ld.so.preload": "/opt/vgpu/ld.so.preload",
	}
	if diff := cmp.Diff(wantMounts, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// HAMi-core lets a container use the host's memory only where it is configured so. Otherwise memory that was promised beyond the GPU's
// own would not be available.
func TestMemoryThatIsPromisedTwiceMayComeFromTheHost(t *testing.T) {
	l := hami(t)
	for _, oversubscribed := range []bool{false, true} {
		l.Oversubscribed = oversubscribed
		got, err := l.Edits(Container{"uid-1", "main"}, []Limit{{UUID: uuid, MemoryMiB: 98280}})
		if err != nil {
			t.Fatal(err)
		}
		if reported := slices.Contains(got.Env, "CUDA_OVERSUBSCRIBE=true"); reported != oversubscribed {
			t.Errorf("oversubscribed: %t, environment %v", oversubscribed, got.Env)
		}
	}
}

// other is the second GPU of the node, in the order of PCI addresses.
const other = "GPU-bbbbbbbb-4e5f-6071-8293-a4b5c6d7e8f9"

func order(uuid string) int { return strings.Count(uuid, "bbbbbbbb") }

// Volcano writes a container's GPUs from the last to the first (checkNodeGPUSharingPredicateAndScore in its vgpu/utils.go), but
// CUDA numbers them from the first to the last.
func TestLimitsFollowTheGPUsAndNotTheOrderOfTheScheduler(t *testing.T) {
	small, large := annotation.Share{UUID: uuid, Memory: 1, Cores: 10}, annotation.Share{UUID: other, Memory: 9, Cores: 20}
	for name, shares := range map[string][]annotation.Share{"forwards": {small, large}, "backwards": {large, small}} {
		got := Limits(shares, 1, false, order)
		if len(got) != 2 || got[0] != (Limit{uuid, 1, 10}) || got[1] != (Limit{other, 9, 20}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := Limits([]annotation.Share{small, small}, 1, false, order); len(got) != 1 || got[0] != (Limit{uuid, 2, 20}) {
		t.Errorf("two shares of one GPU are %+v, want one of both", got)
	}
	if got := Limits([]annotation.Share{small, {UUID: uuid}}, 1, false, order); len(got) != 1 || got[0] != (Limit{UUID: uuid}) {
		t.Errorf("a share and all of one GPU are %+v, want all of it", got)
	}
}

// The library refuses a file of limits with more than 100 percent.
func TestLimitsGiveAllCoresWhenSharesOfOneGPUAddUpToMore(t *testing.T) {
	share := annotation.Share{UUID: uuid, Memory: 1, Cores: 60}
	limits := Limits([]annotation.Share{share, share}, 1, false, order)
	if len(limits) != 1 || limits[0] != (Limit{uuid, 2, 100}) {
		t.Errorf("got %+v, want 2 MiB and 100 percent", limits)
	}
}

func TestLimitsMayLeaveCoresUnlimited(t *testing.T) {
	if got := Limits([]annotation.Share{{UUID: uuid, Memory: 1, Cores: 50}}, 1, true, order); got[0].Cores != 0 {
		t.Errorf("cores %d, want no limit", got[0].Cores)
	}
}

func TestNamesFromOutsideNeverBecomePaths(t *testing.T) {
	l := hami(t)
	for _, c := range []Container{{"../../etc", "main"}, {"uid", "../x"}, {"", "main"}, {"uid", ""}, {"a/b", "c"}, {"uid", "A"}} {
		if _, err := l.Edits(c, nil); !errors.Is(err, ErrName) {
			t.Errorf("Edits(%v): %v, want ErrName", c, err)
		}
		if err := l.Make(c, nil); !errors.Is(err, ErrName) {
			t.Errorf("Make(%v): %v, want ErrName", c, err)
		}
	}
	if err := l.Remove("../.."); !errors.Is(err, ErrName) {
		t.Errorf("Remove: %v, want ErrName", err)
	}
}

// Containers of two tenants share nothing through their limiters: no lock that one could keep, and no file system that one
// could fill.
func TestInjectionGivesEachContainerALockAndABound(t *testing.T) {
	l := hami(t)
	a, b := Container{"uid-1", "main"}, Container{"uid-2", "main"}
	l.Bytes = 4 << 20
	err := l.Make(a, nil)
	if errors.Is(err, unix.EPERM) {
		t.Skipf("mounting is for root alone: %v", err)
	}
	if err = errors.Join(err, l.Make(b, nil), l.Make(a, nil)); err != nil { // a container that is made again has another one
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Remove("uid-1"), l.Remove("uid-2"), l.Sweep()); err != nil {
			t.Error(err)
		}
	})
	for _, directory := range []string{l.Containers, l.Locks} {
		_, err := os.Stat(filepath.Join(directory, "uid-1_main"))
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, "uid-1_main", "junk"), make([]byte, 5<<20), 0o600)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("5 MiB in a directory of 4 MiB: %v", err)
		}
		t.Logf("attacker sees: %v", err)
		if err := os.WriteFile(filepath.Join(directory, "uid-2_main", "cudevshr.cache"), make([]byte, 2008953), 0o600); err != nil {
			t.Errorf("another container has no room for its limiter: %v", err)
		}
	}
	edits, err := l.Edits(a, nil)
	other, otherErr := l.Edits(b, nil)
	if err = errors.Join(err, otherErr); err != nil {
		t.Fatal(err)
	}
	for i, mount := range edits.Mounts {
		if strings.HasPrefix(mount.HostPath, l.Locks) && mount.HostPath == other.Mounts[i].HostPath {
			t.Errorf("two containers share %s", mount.HostPath)
		}
	}
	if err := errors.Join(l.Remove("uid-1"), l.Sweep()); err != nil {
		t.Fatal(err)
	}
	for _, directory := range []string{l.Containers, l.Locks} {
		if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
			t.Errorf("in %s are %v (%v), want the other's alone", directory, entries, err)
		}
	}
}

func TestRemoveDeletesAPodsDirectoriesAndDoesNotFollowLinks(t *testing.T) {
	l := hami(t)
	for _, c := range []Container{{"uid-1", "main"}, {"uid-1", "side"}, {"uid-10", "main"}} {
		if err := l.Make(c, nil); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "keep")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(l.Containers, "uid-1_main", "link")); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove("uid-1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Sweep(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(l.Containers); err != nil || len(entries) != 1 {
		t.Errorf("%v are left (%v), want one directory", entries, err)
	}
	pods, err := l.Pods()
	if err != nil || !slices.Equal(pods, []string{"uid-10"}) {
		t.Errorf("pods with directories: %v, %v; want uid-10 alone", pods, err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a file outside was removed through a link: %v", err)
	}
}

// A pod's end is reported once. What is left then is removed when the program starts again, by the pods that have a directory.
func TestRemoveKeepsTheDirectoryOfAContainerWhoseLimitsRemain(t *testing.T) {
	dir := t.TempDir()
	l := Limiter{Containers: filepath.Join(dir, "containers"), Locks: filepath.Join(dir, "locks"), Accounts: filepath.Join(dir, "accounts")}
	left := filepath.Join(dir, "limits/uid-1_main/in-the-way")
	if err := errors.Join(os.MkdirAll(filepath.Join(l.Containers, "uid-1_main"), 0o700), os.MkdirAll(left, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove("uid-1"); err == nil {
		t.Error("no error for limits that cannot be removed")
	}
	if pods, err := l.Pods(); err != nil || !slices.Equal(pods, []string{"uid-1"}) {
		t.Errorf("pods %v, %v: the limits are never removed", pods, err)
	}
	if err := errors.Join(os.Remove(left), l.Remove("uid-1")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(left)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the limits are left: %v", err)
	}
	if pods, err := l.Pods(); err != nil || len(pods) > 0 {
		t.Errorf("pods %v, %v", pods, err)
	}
}

// A directory that could not be removed yet keeps its name, and a container that is made again has another one.
func TestInjectionRemovesADirectoryBesideAnOlderOne(t *testing.T) {
	l := hami(t)
	c := Container{"uid-1", "main"}
	for range 2 {
		if err := l.Make(c, nil); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l.Containers, "uid-1_main", "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Remove(c.PodUID); err != nil {
			t.Fatal(err)
		}
	}
	if pods, err := l.Pods(); err != nil || len(pods) != 0 {
		t.Errorf("pods with directories: %v, %v; want none", pods, err)
	}
	if err := l.Sweep(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(l.Containers); err != nil || len(entries) != 0 {
		t.Errorf("%v are left (%v)", entries, err)
	}
}
