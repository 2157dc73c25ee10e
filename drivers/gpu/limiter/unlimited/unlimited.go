// Package unlimited finds containers that use a GPU of which they have a share, and whose library never opened their account: nothing
// holds them to the share. So it is with images whose loader reads no /etc/ld.so.preload, with static programs, and with those of another
// architecture.
//
// NVML lists the processes of a GPU by their PIDs on the node, and /proc/PID/cgroup of the node names the pod and the container.
package unlimited

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"gpufabric.io/drivers/gpu/limiter/account"
)

// Pause is the time between two looks. A container is reported at the second look that finds it, so within a minute.
const Pause = 20 * time.Second

// shown is how much of a container's identifier a finding has: the columns of crictl ps.
const shown = 13

// mostText is the most that is read of a process's file of cgroups, in bytes.
const mostText = 64 << 10

// GPU is a GPU of which containers have shares.
type GPU struct {
	UUID string
	// Processes returns the PIDs, on the node, of the processes that have a context on it.
	Processes func() ([]uint32, error)
}

// Container is a container whose share the library limits.
type Container struct {
	// Namespace, Pod and PodUID are its pod's. Name is empty where it is unknown: a finding then has the runtime's identifier.
	Namespace, Pod, PodUID, Name string
	// UUIDs are the GPUs of which it has a limit of memory.
	UUIDs []string
	// Account is the directory of its account, below Watch.Accounts.
	Account string
}

// Finding is a container that nothing limits, seen with a process on a GPU.
type Finding struct {
	Container Container
	UUID      string
	PID       uint32
}

// Message has the finding and the remedy.
func (f Finding) Message() string {
	return fmt.Sprintf("process %d of container %s uses GPU %s, and libvgpu.so has not opened the container's account: nothing holds it "+
		"to its share. Use an image with glibc and dynamically linked programs of the node's architecture, or a MIG device",
		f.PID, f.Container.Name, f.UUID)
}

// Watch finds such containers.
type Watch struct {
	// Proc is the node's /proc, in which processes have the PIDs of the node.
	Proc string
	// Accounts has the directories of accounts.
	Accounts   string
	GPUs       func() []GPU
	Containers func() []Container
	// Inside reports whether a process of the container's pod is one of the container. id is the container runtime's identifier of the
	// container that the process is in, 64 hexadecimal digits.
	Inside func(ctx context.Context, pid uint32, id string, c Container) bool
	// Report is called once for each start of a container that nothing limits.
	Report func(context.Context, Finding)

	seen     map[string]int // looks that found a container, by its runtime's identifier
	reported atomic.Int64
}

// Found is how many running containers were reported.
func (w *Watch) Found() int { return int(w.reported.Load()) }

// Run looks until ctx ends. Without the node's /proc it returns at once.
func (w *Watch) Run(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(w.Proc, "self", "cgroup")); err != nil {
		return nil //nolint:nilerr // the caller chose none, or has none
	}
	tick := time.NewTicker(Pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.Look(ctx)
		}
	}
}

// Look looks once. An unreadable container is skipped: the next look comes soon.
func (w *Watch) Look(ctx context.Context) {
	suspects := map[string][]Container{} // by pod
	for _, c := range w.Containers() {
		counted, err := account.Read(filepath.Join(w.Accounts, c.Account, account.Name))
		if err == nil && !counted.Opened {
			suspects[c.PodUID] = append(suspects[c.PodUID], c)
		}
	}
	found := map[string]Finding{}
	for _, gpu := range w.GPUs() {
		if len(suspects) == 0 {
			break
		}
		pids, err := gpu.Processes()
		if err != nil {
			continue
		}
		for _, pid := range pids {
			pod, id := w.owner(pid)
			for _, c := range suspects[pod] {
				if !slices.Contains(c.UUIDs, gpu.UUID) {
					continue
				}
				if !w.Inside(ctx, pid, id, c) {
					continue
				}
				if c.Name == "" {
					c.Name = id[:shown]
				}
				found[id] = Finding{c, gpu.UUID, pid}
			}
		}
	}
	w.count(ctx, found)
}

// count returns the containers that were found twice in a row.
func (w *Watch) count(ctx context.Context, found map[string]Finding) {
	seen, reported := map[string]int{}, 0
	for id, finding := range found {
		seen[id] = w.seen[id] + 1
		if seen[id] == 2 {
			w.Report(ctx, finding)
		}
		if seen[id] >= 2 {
			reported++
		}
	}
	w.seen = seen
	w.reported.Store(int64(reported))
}

// ofContainer matches the part of a cgroup's path that names a pod and a container: podUID/ID by the kubelet's driver cgroupfs,
// …-podUID.slice/RUNTIME-ID.scope with "_" for "-" in the UID by systemd's.
var ofContainer = regexp.MustCompile(`(?:^|[/-])pod([A-Za-z0-9_-]+?)(?:\.slice)?/(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?(?:/|$)`)

// owner is the pod, by its UID, and the container, by the runtime's identifier, of a process; empty where it has none.
func (w *Watch) owner(pid uint32) (pod, container string) {
	file, err := os.Open(filepath.Join(w.Proc, strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return "", ""
	}
	defer func() { _ = file.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(file, mostText))
	if err != nil {
		return "", ""
	}
	for line := range strings.Lines(string(text)) {
		if m := ofContainer.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			return strings.ReplaceAll(m[1], "_", "-"), m[2]
		}
	}
	return "", ""
}
