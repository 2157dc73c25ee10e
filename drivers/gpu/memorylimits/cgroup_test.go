package memorylimits

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/fakes/cgrouptest"
)

// Names as containerd and CRI-O write them with the kubelet's two cgroup drivers, and as kind has them below its own slice.
func TestCgroupIsFoundByTheRuntimesName(t *testing.T) {
	root := t.TempDir()
	for named, want := range map[string]string{
		"kubepods-burstable-pod1_2.slice:cri-containerd:c0ffee": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/" +
			"cri-containerd-c0ffee.scope",
		"kubepods-pod3.slice:crio:c0ffee": "kubepods.slice/kubepods-pod3.slice/crio-c0ffee.scope",
		"kubelet-kubepods-besteffort-pod4.slice:cri-containerd:c0ffee": "kubelet.slice/kubelet-kubepods.slice/" +
			"kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod4.slice/cri-containerd-c0ffee.scope",
		"/kubepods/burstable/pod5/c0ffee": "kubepods/burstable/pod5/c0ffee",
		"-.slice:cri-containerd:c0ffee":   "cri-containerd-c0ffee.scope",
	} {
		path := filepath.Join(root, want)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte("0\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got, err := (Tree{Root: root}).Container(named, "c0ffee"); err != nil || got != path {
			t.Errorf("%s is %s (%v), want %s", named, got, err, path)
		}
	}
}

// crun puts a container's processes into a cgroup of that name below the one that the runtime names.
func TestCgroupIsTheChildThatHasTheProcesses(t *testing.T) {
	root := t.TempDir()
	scope := filepath.Join(root, "kubepods.slice/crio-c0ffee.scope")
	inner := filepath.Join(scope, "container")
	if err := errors.Join(os.MkdirAll(inner, 0o755), os.WriteFile(filepath.Join(scope, "cgroup.procs"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, err := (Tree{Root: root}).Container("kubepods.slice:crio:c0ffee", "c0ffee"); err != nil || got != inner {
		t.Errorf("got %s (%v), want %s", got, err, inner)
	}
}

// A limit on a pod's cgroup, or on another container's, would apply to other containers.
func TestCgroupIsTheContainersOwn(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "kubepods.slice/kubepods-pod1.slice/cri-containerd-0ther.scope"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, named := range []string{
		"", "/", "/kubepods.slice", "kubepods-pod1.slice:cri-containerd:0ther", "/kubepods.slice/c0ffee/..", "../c0ffee",
		"kubepods--pod1.slice:cri-containerd:c0ffee", "kubepods:cri-containerd:c0ffee", "a/b.slice:cri-containerd:c0ffee",
		".slice:cri-containerd:c0ffee", "kubepods-pod1.slice:cri-containerd:c0ffee", "/kubepods.slice/c0ffee",
	} {
		got, err := Tree{Root: root}.Container(named, "c0ffee")
		if !errors.Is(err, ErrCgroup) {
			t.Errorf("%q is %q (%v), want a refusal", named, got, err)
		}
	}
	if got, err := (Tree{Root: root}).Container("/", ""); !errors.Is(err, ErrCgroup) {
		t.Errorf("a container without a name has %q (%v)", got, err)
	}
}

func TestCgroupRejectsATreeWithoutContainers(t *testing.T) {
	mount, path := cgrouptest.Make(t)
	self := filepath.Join(t.TempDir(), "cgroup")
	for _, test := range []struct{ root, own, wrong string }{
		{mount, "5:cpu:/\n0::/" + filepath.Base(path) + "\n", ""},
		{mount, "0::/\n", "run it privileged"}, // in a namespace of its own
		{mount, "5:cpu:/\n", "does not have a cgroup v2"},
		{mount, "0::/elsewhere\n", "is not the tree that this process is in"},
		{t.TempDir(), "0::/a\n", "is not a cgroup v2"},
		{"/nowhere", "0::/a\n", "look for cgroup v2 at /nowhere"},
	} {
		if err := os.WriteFile(self, []byte(test.own), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Tree{Root: test.root, Self: self}.Check()
		if test.wrong == "" && err != nil || test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
			t.Errorf("%s with %q: %v, want %q", test.root, test.own, err, test.wrong)
		}
	}
}
