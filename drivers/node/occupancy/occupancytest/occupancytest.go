// Package occupancytest gives tests a node's cgroups of version 2, in files.
package occupancytest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gpufabric.io/drivers/node/occupancy"
)

// Pods are the cgroups of a node's pods below a root.
type Pods struct {
	t    testing.TB
	root string
}

// New makes the cgroups of a node with one pod, which has no processes: a node whose kubelet makes a cgroup for each pod.
func New(t testing.TB, root string) Pods {
	t.Helper()
	p := Pods{t, root}
	if err := errors.Join(os.MkdirAll(p.Path("other"), 0o755),
		os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return p
}

// Path is a pod's cgroup.
func (p Pods) Path(uid string) string { return filepath.Join(p.root, "kubepods/burstable/pod"+uid) }

// Run gives a pod a container with two processes, whose ID is c0ffee.
func (p Pods) Run(uid string) {
	p.t.Helper()
	container := filepath.Join(p.Path(uid), "c0ffee")
	if err := errors.Join(os.MkdirAll(container, 0o755), os.WriteFile(filepath.Join(container, "cgroup.procs"), []byte("1\n2\n"), 0o600),
		os.WriteFile(filepath.Join(p.Path(uid), occupancy.Events), []byte("populated 1\n"), 0o600)); err != nil {
		p.t.Fatal(err)
	}
}

// End ends a pod's processes and removes its cgroup, as the kubelet does.
func (p Pods) End(uid string) {
	p.t.Helper()
	if err := os.RemoveAll(p.Path(uid)); err != nil {
		p.t.Fatal(err)
	}
}
