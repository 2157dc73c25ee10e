package unlimited

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/limiter/account"
)

const (
	uid  = "0a1b2c3d-1111-2222-3333-444455556666"
	gpu  = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	path = "0::/../../kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-"
)

var first, second = strings.Repeat("a", 64), strings.Repeat("b", 64)

// node is one with a pod of two containers, of which the second has opened its account.
type node struct {
	*Watch
	pids     []uint32
	findings []Finding
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{}
	containers := []Container{{"default", "train", uid, "main", []string{gpu}, uid + "_main"},
		{"default", "train", uid, "side", []string{gpu}, uid + "_side"}}
	n.Watch = &Watch{
		Proc: t.TempDir(), Accounts: t.TempDir(),
		GPUs:       func() []GPU { return []GPU{{gpu, func() ([]uint32, error) { return n.pids, nil }}} },
		Containers: func() []Container { return containers },
		Inside: func(_ context.Context, _ uint32, id string, c Container) bool {
			return (id == first) == (c.Name == "main")
		},
		Report: func(_ context.Context, f Finding) { n.findings = append(n.findings, f) },
	}
	for _, c := range containers {
		if err := account.Make(filepath.Join(n.Accounts, c.Account), false); err != nil {
			t.Fatal(err)
		}
	}
	n.write(t, 7, path+first+".scope")
	n.write(t, 8, path+second+".scope")
	n.write(t, 9, "4:memory:/kubepods/burstable/pod"+uid+"/"+first+"\n0::/")
	n.write(t, 10, "0::/system.slice/dcgm.service")
	return n
}

func (n *node) write(t *testing.T, pid int, cgroup string) {
	t.Helper()
	directory := filepath.Join(n.Proc, strconv.Itoa(pid))
	err := os.MkdirAll(directory, 0o700)
	if err := errors.Join(err, os.WriteFile(filepath.Join(directory, "cgroup"), []byte(cgroup+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// opens has a container's library open its account.
func (n *node) opens(t *testing.T, container string) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(n.Accounts, uid+"_"+container, account.Name), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt([]byte{0x32, 0x6d, 0x6c, 0x62, 0x61, 0x66, 0x70, 0x67}, 0) // ledger.h
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestWatchReportsAContainerOnAGPUWhoseAccountIsNotOpened(t *testing.T) {
	for name, pid := range map[string]uint32{"systemd's cgroups": 7, "cgroups of version 1": 9} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.opens(t, "side")
			n.pids = []uint32{8, 10, pid, 4711}
			n.Look(t.Context())
			if len(n.findings) != 0 {
				t.Fatalf("reported at the first look, when a process may just have begun: %+v", n.findings)
			}
			for range 3 {
				n.Look(t.Context())
			}
			if len(n.findings) != 1 || n.findings[0].Container.Name != "main" || n.findings[0].PID != pid || n.Found() != 1 {
				t.Fatalf("findings %+v, %d now", n.findings, n.Found())
			}
			if text := n.findings[0].Message(); !strings.Contains(text, "container main uses GPU "+gpu) {
				t.Error(text)
			}
			n.pids = nil
			if n.Look(t.Context()); n.Found() != 0 {
				t.Errorf("%d after its processes ended", n.Found())
			}
		})
	}
}

func TestWatchDoesNotReportLimitedContainersOrThoseWithoutAGPU(t *testing.T) {
	n := newNode(t)
	n.opens(t, "main")
	n.pids = []uint32{7, 10}
	n.Look(t.Context())
	n.Look(t.Context())
	if len(n.findings) != 0 {
		t.Errorf("reported: %+v", n.findings)
	}
}
