// Package cgrouptest gives tests real cgroups of the kernel, since NVIDIA's driver, and so the fake, limits only cgroups.
package cgrouptest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gpufabric.io/fakes/state"
)

// Make makes a cgroup v2 for a test. At the test's end it removes the cgroup and all below it, which must then have no
// processes. mount is where cgroup v2 is mounted. It skips the test, with the reason, where it cannot make one.
func Make(t testing.TB) (mount, path string) {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := state.CgroupOf(mount); err != nil {
			continue
		}
		path, err := os.MkdirTemp(mount, "gpufabric-test-")
		if err != nil {
			t.Skipf("skipped: no cgroup can be made here: %v", err)
		}
		t.Cleanup(func() {
			if err := remove(path); err != nil {
				t.Error(err)
			}
		})
		return mount, path
	}
	t.Skip("skipped: cgroup v2 is mounted at neither /sys/fs/cgroup nor /sys/fs/cgroup/unified")
	return "", ""
}

// remove removes only the directories, the deepest first: a cgroup's files go with it.
func remove(path string) error {
	var directories []string
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			directories = append(directories, path)
		}
		return err
	})
	for _, directory := range slices.Backward(directories) {
		if err := os.Remove(directory); err != nil {
			return err
		}
	}
	return err
}
