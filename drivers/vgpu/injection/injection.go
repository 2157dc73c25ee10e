// Package injection returns the edits of a container with which a limiter inside it enforces its share of a GPU: environment, the
// limiter's library by preload, and a directory of its own for the limiter's accounting. The variables and paths are those of
// HAMi-core.
package injection

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/node/tmpfs"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/instances"
)

// Paths in a container, as HAMi-core uses them.
const (
	cache    = "/tmp/vgpu"
	lock     = "/tmp/vgpulock"
	override = "/overrideEnv"
	region   = "/tmp/vgpu/cudevshr.cache"
)

// VisibleDevices is the variable with a container's GPUs for NVIDIA's container runtime and for limiters.
const VisibleDevices = "NVIDIA_VISIBLE_DEVICES"

// ControlOff is the variable by which a container opts out of HAMi-core's limits; a policy may forbid it.
const ControlOff = "CUDA_DISABLE_CONTROL"

// TaskPriority is the variable that gives a container's work priority over that of others on its GPU with HAMi-core: 0; the default
// is 1.
const TaskPriority = "CUDA_TASK_PRIORITY"

// CorePolicy is the variable by which a container chooses when HAMi-core limits its cores. CoreLimitOff is the value that never
// limits them. The others, default and force, limit at least to the container's share.
const (
	CorePolicy   = "GPU_CORE_UTILIZATION_POLICY"
	CoreLimitOff = "disable"
)

// Visible is the variable that names a container's MIG instances.
func Visible(given []instances.Instance) string {
	uuids := make([]string, 0, len(given))
	for _, i := range given {
		uuids = append(uuids, i.UUID)
	}
	return VisibleDevices + "=" + strings.Join(uuids, ",")
}

// Limiter describes the limiter on the host.
type Limiter struct {
	// Backend enforces the containers' shares. With None they get limits only as environment, for a limiter in their image.
	Backend Backend
	// Directory holds libvgpu.so and ld.so.preload: HAMi-core's, or ours. With Native it holds ours; empty: cores are not limited.
	Directory string
	// Closed makes our library refuse all memory where it cannot count. Without it, each process is then held to the limits
	// separately.
	Closed bool
	// Containers is the directory in which each container's accounting directory is made.
	Containers string
	// Accounts is the directory in which our library's account of each container is made, in a directory of its own.
	Accounts string
	// Locks is the directory in which each container's lock directory is made. HAMi-core serialises its start through it. One
	// container could keep or fill a lock that several shared.
	Locks string
	// Bytes is how much a container may put into either of its directories; 0: no limit.
	Bytes int64
	// Seats are the seats of the containers with limits of cores; nil: each process of theirs holds itself to its limit.
	Seats *cores.Seats
	// Oversubscribed means that more memory is promised than the GPUs have: containers may then use the host's memory for the rest.
	Oversubscribed bool
}

// Container identifies a container on a node.
type Container struct {
	PodUID, Name string
}

// Limit is a container's share of one GPU.
type Limit struct {
	UUID string
	// MemoryMiB is 0 for the whole GPU's.
	MemoryMiB int64
	// Cores is in percent of the GPU's SMs, 0 for unlimited.
	Cores int
}

// Limits converts the scheduler's shares, in units of factor MiB. noCoreLimit leaves cores unlimited.
//
// HAMi-core identifies limits only by CUDA's number of a GPU. So the limits are in the order in which CUDA numbers the GPUs with
// CUDA_DEVICE_ORDER=PCI_BUS_ID, given by index, whatever order the scheduler chose. Two shares of one GPU make one limit.
func Limits(shares []annotation.Share, factor int, noCoreLimit bool, index func(uuid string) int) []Limit {
	out := make([]Limit, 0, len(shares))
	for _, share := range shares {
		limit := Limit{UUID: share.UUID, MemoryMiB: share.Memory * int64(factor), Cores: share.Cores}
		if noCoreLimit {
			limit.Cores = 0
		}
		at := slices.IndexFunc(out, func(l Limit) bool { return l.UUID == limit.UUID })
		if at < 0 {
			out = append(out, limit)
			continue
		}
		first := &out[at]
		first.MemoryMiB = both(first.MemoryMiB, limit.MemoryMiB)
		first.Cores = min(allCores, int(both(int64(first.Cores), int64(limit.Cores))))
	}
	slices.SortStableFunc(out, func(a, b Limit) int { return cmp.Compare(index(a.UUID), index(b.UUID)) })
	return out
}

// allCores is the largest percentage of a GPU's cores. With deviceCoreScaling more is promised, and two shares may have more together.
const allCores = 100

// both adds two amounts, of which 0 means all.
func both(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	return a + b
}

// Edits returns a container's edits besides the GPUs' device nodes and driver files, which come through CDI.
func (l Limiter) Edits(container Container, limits []Limit) (specs.ContainerEdits, error) {
	directory, err := l.Accounting(container)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	uuids := make([]string, 0, len(limits))
	var e specs.ContainerEdits
	for i, limit := range limits {
		uuids = append(uuids, limit.UUID)
		if limit.MemoryMiB > 0 {
			e.Env = append(e.Env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d=%dm", i, limit.MemoryMiB))
		}
	}
	if cores := coreLimit(limits); cores > 0 {
		e.Env = append(e.Env, fmt.Sprintf("CUDA_DEVICE_SM_LIMIT=%d", cores))
	}
	if l.Oversubscribed {
		e.Env = append(e.Env, "CUDA_OVERSUBSCRIBE=true")
	}
	e.Env = append(e.Env, VisibleDevices+"="+strings.Join(uuids, ","), "CUDA_DEVICE_MEMORY_SHARED_CACHE="+region)
	if len(limits) > 1 {
		e.Env = append(e.Env, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
	}
	e.Mounts = []*specs.Mount{
		{HostPath: directory, ContainerPath: cache, Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
		{HostPath: filepath.Join(l.Locks, filepath.Base(directory)), ContainerPath: lock,
			Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
	}
	file := []string{"ro", "nosuid", "nodev", "noexec", "bind"}
	switch {
	case l.Of(limits) == HAMiCore:
		// HAMi-core takes its limits from this file of the image before its environment (ENV_OVERRIDE_FILE in its
		// multiprocess_memory_limit.h). An empty file leaves the limits unchanged.
		e.Mounts = append(e.Mounts, &specs.Mount{HostPath: l.empty(), ContainerPath: override, Options: file})
	case l.ours(limits):
		name := filepath.Base(directory)
		e.Mounts = append(e.Mounts, &specs.Mount{HostPath: l.limits(name), ContainerPath: limiter.File, Options: file},
			&specs.Mount{HostPath: filepath.Join(l.Accounts, name, account.Name), ContainerPath: limiter.Account,
				Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}})
		if l.Seats != nil {
			e.Mounts = append(e.Mounts, l.Seats.Mounts(name, l.converted(limits))...)
		}
	default:
		return e, nil
	}
	for _, inside := range []string{limiter.Loaded, limiter.LoadersList} {
		e.Mounts = append(e.Mounts, &specs.Mount{
			HostPath: filepath.Join(l.Directory, filepath.Base(inside)), ContainerPath: inside, Options: []string{"ro", "nosuid", "nodev", "bind"},
		})
	}
	return e, nil
}

// coreLimit is HAMi-core's single limit for all of a container's GPUs: the smallest that was requested, so that no GPU gives more
// than its share. 0 is unlimited.
func coreLimit(limits []Limit) int {
	smallest := 0
	for _, limit := range limits {
		if limit.Cores > 0 && (smallest == 0 || limit.Cores < smallest) {
			smallest = limit.Cores
		}
	}
	return smallest
}

var (
	podUID        = regexp.MustCompile(`^[0-9a-zA-Z][0-9a-zA-Z-]{0,63}$`)
	containerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

// ErrName marks a pod or container whose name cannot be used for a directory.
var ErrName = errors.New("not a valid Kubernetes name")

// Accounting is the container's accounting directory: POD-UID_CONTAINER, the form that the public monitor reads.
func (l Limiter) Accounting(c Container) (string, error) {
	if !podUID.MatchString(c.PodUID) || !containerName.MatchString(c.Name) {
		return "", fmt.Errorf("pod UID %.80q, container %.80q: %w", c.PodUID, c.Name, ErrName)
	}
	return filepath.Join(l.Containers, c.PodUID+"_"+c.Name), nil
}

// gone is the prefix of directories whose content must be removed. No pod's UID begins so.
const gone = ".gone-"

// mostAside is how many directories of one container may wait for removal: it was restarted that often in between.
const mostAside = 16

// Remove sets a pod's accounting directories aside, for Sweep to remove: that is quick however many files a tenant made in them.
// Call it when the pod's sandbox is gone: until then they are mounted.
func (l Limiter) Remove(uid string) error {
	if !podUID.MatchString(uid) {
		return fmt.Errorf("pod UID %.80q: %w", uid, ErrName)
	}
	entries, err := os.ReadDir(l.Containers)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the limiter's directories: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if owner, _, found := strings.Cut(entry.Name(), "_"); found && owner == uid {
			errs = append(errs, l.remove(entry.Name()))
		}
	}
	return errors.Join(errs...)
}

// remove removes the directories of a container. Its accounting directory is last: while that is there, a later call finds the
// rest, such as a seat that would keep its part of a GPU's time.
func (l Limiter) remove(name string) error {
	if err := errors.Join(l.setAside(l.Locks, name), l.setAside(l.Accounts, name), l.forget(name)); err != nil {
		return err
	}
	return l.setAside(l.Containers, name)
}

// setAside gives a directory a name that Sweep looks for. It does not make a file, since tenants' files may have filled the disk. A
// directory of bounded size goes with its file system. A missing directory is no error.
func (l Limiter) setAside(in, name string) error {
	path := filepath.Join(in, name)
	if err := tmpfs.Release(path); err != nil {
		return err
	}
	aside := filepath.Join(in, gone+name)
	for n := range mostAside {
		if n > 0 {
			aside = filepath.Join(in, fmt.Sprintf("%s%s.%d", gone, name, n))
		}
		err := os.Rename(path, aside)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return err // it names both
		}
	}
	// Directories of that name still exist, since they could not be removed. This one is removed without being set aside. RemoveAll
	// does not follow a link.
	return os.RemoveAll(path)
}

// Sweep removes the directories that Remove set aside, also before a restart. Its time depends on the number of the tenants' files.
func (l Limiter) Sweep() error {
	var aside []string
	for _, in := range []string{l.Containers, l.Locks, l.Accounts} {
		found, err := filepath.Glob(filepath.Join(in, gone+"*"))
		if err != nil {
			return fmt.Errorf("list the limiter's directories that are to be removed: %w", err)
		}
		aside = append(aside, found...)
	}
	var errs []error
	for _, path := range aside {
		// RemoveAll does not follow links: the target of a tenant's link stays.
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// Pods returns the UIDs that have accounting directories, so that those of pods that ended while the plugin was away can be
// removed.
func (l Limiter) Pods() ([]string, error) {
	entries, err := os.ReadDir(l.Containers)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the limiter's directories: %w", err)
	}
	seen := map[string]bool{}
	var uids []string
	for _, entry := range entries {
		if uid, _, found := strings.Cut(entry.Name(), "_"); found && !seen[uid] && podUID.MatchString(uid) {
			seen[uid] = true
			uids = append(uids, uid)
		}
	}
	return uids, nil
}
