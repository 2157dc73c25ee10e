package occupancy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Events is the file of a cgroup of version 2 that the kernel modifies when the cgroup, with all below it, gets its first process or
// loses its last one (cgroup-v2.rst, "[Un]populated Notification").
const Events = "cgroup.events"

// tasks is the file of a cgroup in the hierarchy pids of version 1 with the number of tasks in the cgroup and those below it (pids.rst).
const tasks = "pids.current"

// hierarchies are the hierarchies of cgroup version 1 in which the kubelet makes a cgroup for every pod, in the order of
// preference. In the others than pids, a reader sees only processes of its own PID namespace (pidlist_array_load in
// kernel/cgroup/cgroup-v1.c).
var hierarchies = []string{"pids", "memory", "cpu", "devices"} //nolint:gochecknoglobals // constant

// Cgroups is the node's cgroup tree, of version 1 or 2. It is safe for concurrent use. A tree whose root is missing has no pods.
type Cgroups struct {
	// Root is where the node's cgroups are mounted: usually /sys/fs/cgroup.
	Root string

	mu sync.Mutex
	// parents are directories in which pods were found: one for each class of quality of service.
	parents []string
}

// podDirectory matches the base name of a pod's cgroup: pod<uid> by the kubelet's driver cgroupfs, and …-pod<uid>.slice with "_" for
// "-" by its driver systemd (pkg/kubelet/cm/cgroup_manager_linux.go).
var podDirectory = regexp.MustCompile(`^(?:.*-)?pod([A-Za-z0-9._-]+?)(?:\.slice)?$`)

// podOf returns the pod whose cgroup has that base name; "" where it is no pod's.
func podOf(base string) types.UID {
	match := podDirectory.FindStringSubmatch(base)
	if match == nil {
		return ""
	}
	if strings.HasSuffix(base, ".slice") {
		return types.UID(strings.ReplaceAll(match[1], "_", "-"))
	}
	return types.UID(match[1])
}

// Find returns the cgroups of pods, as paths below Root. A pod without a cgroup is missing from the result. With an error, so may be
// others: ctx has ended, or this process or the kernel lacks memory or file descriptors to read the tree.
func (c *Cgroups) Find(ctx context.Context, pods ...types.UID) (map[types.UID]string, error) {
	found := map[types.UID]string{}
	if c.Root == "" {
		return found, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pod := range pods {
		for _, parent := range c.parents {
			for _, base := range baseNames(parent, pod) {
				if info, err := os.Stat(filepath.Join(c.Root, parent, base)); err == nil && info.IsDir() {
					found[pod] = filepath.Join(parent, base)
				}
			}
		}
	}
	if len(found) == len(pods) {
		return found, nil
	}
	err := c.walk(ctx, c.start(), func(below string, pod types.UID) {
		if slices.Contains(pods, pod) {
			found[pod] = below
		}
		if parent := filepath.Dir(below); !slices.Contains(c.parents, parent) {
			c.parents = append(c.parents, parent)
		}
	})
	if err != nil {
		return found, fmt.Errorf("look for pods among the node's cgroups: %w", err)
	}
	return found, nil
}

// baseNames returns the names that a pod's cgroup can have in a directory.
func baseNames(parent string, pod types.UID) []string {
	names := []string{"pod" + string(pod)}
	if slice, ok := strings.CutSuffix(filepath.Base(parent), ".slice"); ok {
		names = append(names, slice+"-pod"+strings.ReplaceAll(string(pod), "-", "_")+".slice")
	}
	return names
}

// start returns the directory below Root that has the pods' cgroups: Root itself for version 2, one hierarchy for version 1.
func (c *Cgroups) start() string {
	if _, err := os.Stat(filepath.Join(c.Root, "cgroup.controllers")); err == nil {
		return ""
	}
	for _, name := range hierarchies {
		if info, err := os.Stat(filepath.Join(c.Root, name)); err == nil && info.IsDir() {
			return name
		}
	}
	return ""
}

// walk calls each for the cgroups of pods below a directory. It does not enter them: a container in a pod may have cgroups of its own
// making, with any name. The error is that of a tree that was not read whole.
func (c *Cgroups) walk(ctx context.Context, below string, each func(below string, pod types.UID)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	entries, err := os.ReadDir(filepath.Join(c.Root, below))
	switch {
	case lacking(err):
		return err
	case err != nil:
		return nil // a cgroup that is gone has no pods, and one that is closed to this process has none that it could ever see
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		path := filepath.Join(below, entry.Name())
		if pod := podOf(entry.Name()); pod != "" && strings.Contains(path, "kubepods") {
			each(path, pod)
			continue
		}
		if err := c.walk(ctx, path, each); err != nil {
			return err
		}
	}
	return nil
}

// lacking reports whether an error passes: of file descriptors or memory that there are none of at the moment.
func lacking(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// Container is a container with processes.
type Container struct {
	// ID is the runtime's ID of the container, or the name of its cgroup where that has another form.
	ID string
	// Processes are how many processes it has, those of cgroups below its own included.
	Processes int
}

// Sight is the result of looking for a pod among the node's cgroups.
type Sight struct {
	// Running: the pod has processes.
	Running bool
	// Known: Running is the truth. It is not where the tree has no pod at all, as where the kubelet does not make cgroups for pods.
	Known bool
	// Containers are those with processes, the sandbox included. A pod may run without any.
	Containers []Container
}

// Look returns the state of a pod. The kubelet removes the cgroup of a pod that has ended, so a pod without one has no processes where
// other pods have theirs. A pod that may have been overlooked counts as running, with an error.
func (c *Cgroups) Look(ctx context.Context, pod types.UID) (Sight, error) {
	all, err := c.Find(ctx, pod)
	below, found := all[pod]
	switch {
	case found:
	case err != nil:
		return Sight{Running: true}, err
	default:
		return Sight{Known: c.hasPods()}, nil
	}
	live, err := c.Live(below)
	if !live {
		return Sight{Known: err == nil}, err
	}
	containers, unread := c.containers(below)
	err = errors.Join(err, unread)
	return Sight{Running: true, Known: err == nil, Containers: containers}, err
}

// hasPods reports whether the tree has the cgroup of any pod.
func (c *Cgroups) hasPods() bool {
	if c.Root == "" {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.parents, func(parent string) bool {
		entries, err := os.ReadDir(filepath.Join(c.Root, parent))
		return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() && podOf(e.Name()) != "" })
	})
}

// String names the containers, for people.
func (s Sight) String() string {
	var names []string
	for _, container := range s.Containers {
		names = append(names, fmt.Sprintf("container %.12s (%d processes)", container.ID, container.Processes))
	}
	if len(names) == 0 {
		return "a process"
	}
	return strings.Join(names, ", ")
}

// Path returns a cgroup's directory on this machine.
func (c *Cgroups) Path(below string) string { return filepath.Join(c.Root, below) }

// Live reports whether a cgroup, or one below it, has processes. A cgroup that is gone has none. The kernel counts a process that
// cannot be killed until it has ended. An error means that the state is unknown: a cgroup that exists and cannot be read counts as
// live, since a plugin without a file descriptor left must not give away devices that a container uses. Where the whole tree is
// missing, it does not.
func (c *Cgroups) Live(below string) (bool, error) {
	directory := c.Path(below)
	file, err := os.ReadFile(filepath.Join(directory, Events))
	switch {
	case err == nil:
		return slices.Contains(strings.Split(string(file), "\n"), "populated 1"), nil
	case !gone(err):
		return true, fmt.Errorf("read whether a cgroup has processes: %w", err)
	}
	if _, err := os.Stat(c.Root); err != nil {
		return false, fmt.Errorf("the node's cgroups cannot be read (--cgroup-root): %w", err)
	}
	processes, err := count(directory)
	return processes > 0 || err != nil, err
}

// Containers returns the containers of a pod's cgroup that have processes, sorted by ID, as far as they can be read. The sandbox is one of
// them.
func (c *Cgroups) Containers(below string) []Container {
	containers, _ := c.containers(below)
	return containers
}

// containers is like Containers. The error is that of containers that may be missing.
func (c *Cgroups) containers(below string) ([]Container, error) {
	directory := c.Path(below)
	entries, err := os.ReadDir(directory)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list a pod's containers: %w", err)
	}
	var containers []Container
	var errs []error
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		n, err := count(filepath.Join(directory, entry.Name()))
		if errs = append(errs, err); n > 0 {
			containers = append(containers, Container{ID: containerID(entry.Name()), Processes: n})
		}
	}
	slices.SortFunc(containers, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
	return containers, errors.Join(errs...)
}

// containerID is the ID in a cgroup's base name: <id>, or <runtime>-<id>.scope by systemd.
func containerID(base string) string {
	name, scoped := strings.CutSuffix(base, ".scope")
	if !scoped {
		return base
	}
	return name[strings.LastIndex(name, "-")+1:]
}

// count returns how many processes a cgroup and those below it have; in the hierarchy pids of version 1, how many tasks.
func count(directory string) (int, error) {
	if _, err := os.Stat(filepath.Join(directory, Events)); err != nil {
		if n, known := countTasks(directory); known {
			return n, nil
		}
	}
	n := 0
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case gone(err):
			return nil
		case err != nil:
			return err
		case entry.IsDir() || entry.Name() != "cgroup.procs":
			return nil
		}
		file, err := os.Open(path)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			n++
		}
		if gone(lines.Err()) {
			return nil
		}
		return lines.Err()
	})
	if err != nil {
		return 0, fmt.Errorf("count a cgroup's processes: %w", err)
	}
	return n, nil
}

// countTasks reads how many tasks a cgroup of the hierarchy pids has.
func countTasks(directory string) (n int, known bool) {
	raw, err := os.ReadFile(filepath.Join(directory, tasks))
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(raw)))
	return n, err == nil
}

// gone reports whether an error is that of a cgroup that no longer exists. The kernel answers ENODEV for an open file of a removed one, and
// EOPNOTSUPP for the cgroup.procs of a threaded one, whose processes are in the cgroup above.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP)
}
