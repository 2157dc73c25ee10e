package memorylimits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultCgroups is where systemd mounts cgroup v2.
const DefaultCgroups = "/sys/fs/cgroup"

// Tree is the node's cgroup tree.
type Tree struct {
	// Root is where cgroup v2 is mounted. The driver gets paths below it, so the node must have it at the same path.
	Root string
	// Self is the file that names this process's cgroup: /proc/self/cgroup.
	Self string
}

// ErrCgroup marks a cgroup that cannot be found, or that does not belong to a container.
var ErrCgroup = errors.New("no cgroup of a container")

// Check reports why containers cannot be found in the tree.
func (t Tree) Check() error {
	var in unix.Statfs_t
	if err := unix.Statfs(t.Root, &in); err != nil {
		return fmt.Errorf("look for cgroup v2 at %s (--cgroup-root): %w", t.Root, err)
	}
	if in.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%s (--cgroup-root) is not a cgroup v2, and NVIDIA's driver limits cgroups of version 2 only", t.Root)
	}
	own, err := t.Own()
	if err != nil {
		return err
	}
	if own == "/" {
		// Container runtimes give every container but privileged ones a cgroup namespace of its own (containerd: pkg/cri, "cgroupns is
		// used for hiding /sys/fs/cgroup from containers").
		return fmt.Errorf("%s shows this process only its own cgroup, and not those of the node's containers: run it privileged", t.Root)
	}
	if _, err := os.Stat(filepath.Join(t.Root, own)); err != nil {
		return fmt.Errorf("%s is not the tree that this process is in: %w", t.Root, err)
	}
	return nil
}

// Own is this process's cgroup, as a path below the tree's root.
func (t Tree) Own() (string, error) {
	text, err := os.ReadFile(t.Self)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = os.ReadFile("/proc/self/cgroup") // a tree in the place of /proc has no processes
	}
	if err != nil {
		return "", fmt.Errorf("look for this process's own cgroup: %w", err)
	}
	own, found := unified(string(text))
	if !found {
		return "", fmt.Errorf("%s does not have a cgroup v2 of this process", t.Self)
	}
	return own, nil
}

// unified is the path of the cgroup v2 in a file such as /proc/self/cgroup.
func unified(text string) (path string, found bool) {
	for line := range strings.Lines(text) {
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return path, true
		}
	}
	return "", false
}

// Container returns the directory of the cgroup with a container's processes. named is the runtime's name of the container's cgroup
// for runc or crun (linux.cgroupsPath of the OCI runtime specification): SLICE:PREFIX:NAME where systemd makes it, else a path.
func (t Tree) Container(named, id string) (string, error) {
	below := named
	if parts := strings.Split(named, ":"); len(parts) == 3 {
		slice, err := slicePath(parts[0])
		if err != nil {
			return "", fmt.Errorf("cgroup %.200q of container %.80q: %w", named, id, err)
		}
		unit := parts[2]
		if parts[1] != "" {
			unit = parts[1] + "-" + unit
		}
		below = filepath.Join(slice, unit+".scope")
	}
	below = filepath.Clean("/" + below)
	// A limit on a pod's cgroup, or on one further up, would also apply to other containers.
	if id == "" || !strings.Contains(filepath.Base(below), id) {
		return "", fmt.Errorf("cgroup %.200q of container %.80q does not have the container's name: %w", named, id, ErrCgroup)
	}
	directory := filepath.Join(t.Root, below)
	if info, err := os.Stat(directory); err != nil || !info.IsDir() {
		return "", fmt.Errorf("cgroup %.200q of container %.80q does not exist at %s: %w", named, id, directory, errors.Join(ErrCgroup, err))
	}
	return leaf(directory)
}

// slicePath is the path of a slice in systemd: a-b.slice is in a.slice (systemd.slice(5)).
func slicePath(slice string) (string, error) {
	name, found := strings.CutSuffix(slice, ".slice")
	if !found || name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%.80q is not a systemd slice: %w", slice, ErrCgroup)
	}
	if name == "-" {
		return "", nil
	}
	path, so := "", ""
	for part := range strings.SplitSeq(name, "-") {
		if part == "" {
			return "", fmt.Errorf("%.80q is not a systemd slice: %w", slice, ErrCgroup)
		}
		so = strings.TrimPrefix(so+"-"+part, "-")
		path = filepath.Join(path, so+".slice")
	}
	return path, nil
}

// deepest is how many cgroups crun makes below a container's own: one, called container.
const deepest = 1

// leaf is the cgroup at or below directory that has the container's processes.
func leaf(directory string) (string, error) {
	for range deepest {
		processes, err := os.ReadFile(filepath.Join(directory, "cgroup.procs"))
		if err != nil {
			return "", fmt.Errorf("look for a container's processes: %w", err)
		}
		if len(processes) > 0 {
			return directory, nil
		}
		below, err := children(directory)
		if err != nil {
			return "", fmt.Errorf("look for a container's processes: %w", err)
		}
		if len(below) != 1 {
			return directory, nil
		}
		directory = filepath.Join(directory, below[0])
	}
	return directory, nil
}

func children(directory string) (names []string, err error) {
	entries, err := os.ReadDir(directory)
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, err
}
