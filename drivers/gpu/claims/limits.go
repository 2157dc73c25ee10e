package claims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/tmpfs"
)

// Limits enforces the limits of shares, of memory and of cores, with this project's library. With the zero value the limits are only
// environment variables, for a limiter in the container's image.
type Limits struct {
	// Library is the directory on the host that holds libvgpu.so and ld.so.preload; empty: there is none.
	Library string
	// Files is the directory with the limits of claims, at the same path here and on the host. No container can write there.
	Files  string
	Writer atomicfile.Writer
	// Accounts is the directory with the library's counts of each share, at the same path here and on the host. Containers have their
	// share's file there, in a file system of its own. With Bytes of 0 they have none, since tenants could fill the node's disk, and each
	// container is held to its share by itself.
	Accounts string
	Bytes    int64
	// Closed makes the library refuse all memory where it cannot count.
	Closed bool
	// Seats are the seats of shares with a percentage of the cores; all containers of one share have theirs together. nil: each process holds
	// itself to its percentage.
	Seats *cores.Seats
}

// Limiters of containers' shares: the values of devices.AttrLimits.
const (
	byLibrary = "library"
	byNothing = "none"
)

// By is the mechanism that limits the containers of shares.
func (l Limits) By() string {
	if l.Library == "" {
		return byNothing
	}
	return byLibrary
}

// ownAccount is where a container's limiter counts memory that belongs to no single share: that of a GPU of which it has several
// shares: a tmpfs of its own, which is empty at each start of the container. It has space for the limiter's file (0.5 MB).
func ownAccount() *specs.Mount {
	return &specs.Mount{HostPath: "tmpfs", ContainerPath: limiter.Own, Type: "tmpfs",
		Options: []string{"rw", "nosuid", "nodev", "noexec", "mode=1777", "size=2m", "nr_inodes=16"}}
}

// limitOf returns the limit of a share of a GPU; false: it has none, or only observes the GPU. A counted share that does not request memory
// has none, and a share of a GPU without memory of its own has one of cores alone.
func limitOf(gpu string, allocated draplugin.AllocatedDevice) (limit limiter.Limit, limited bool) {
	memory := allocated.ConsumedCapacity[devices.CapMemory]
	percent := allocated.ConsumedCapacity[devices.CapCores]
	limit = limiter.Limit{UUID: gpu, Bytes: memory.Value(), Cores: int(percent.Value())}
	return limit, (memory.Sign() > 0 || limit.Cores > 0 && limit.Cores < 100) && !allocated.Admin()
}

// edits writes the limit of the claim's share with that index, and returns the edits that add the library to its containers.
func (l Limits) edits(uid types.UID, index int, gpu string, allocated draplugin.AllocatedDevice) (specs.ContainerEdits, error) {
	name := fmt.Sprintf("%s_%d", uid, index)
	limit, limited := limitOf(gpu, allocated)
	if l.Library == "" || !limited {
		// The containers of an earlier preparation, before a boot, may have had the library.
		return specs.ContainerEdits{}, l.sweep(func(other string) bool { return other == name })
	}
	text, err := limiter.Text([]limiter.Limit{limit}, l.Closed)
	if err != nil {
		return specs.ContainerEdits{}, draplugin.Refuse("InvalidConfig", "the share of %s: %w", gpu, err)
	}
	if err := os.MkdirAll(l.Files, 0o755); err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("make the directory of claims' limits: %w", err)
	}
	if err := l.Writer.Write(filepath.Join(l.Files, name), text, 0o444); err != nil {
		return specs.ContainerEdits{}, err
	}
	read := []string{"ro", "nosuid", "nodev", "bind"}
	mounts := []*specs.Mount{
		{HostPath: filepath.Join(l.Files, name), ContainerPath: filepath.Join(limiter.Directory, name), Options: read},
		{HostPath: filepath.Join(l.Library, limiter.Library), ContainerPath: limiter.Loaded, Options: read},
		{HostPath: filepath.Join(l.Library, limiter.Preload), ContainerPath: limiter.LoadersList, Options: read},
		ownAccount(),
	}
	if l.Bytes > 0 {
		if err := account.Make(filepath.Join(l.Accounts, name), true); err != nil {
			return specs.ContainerEdits{}, err
		}
		mounts = append(mounts, &specs.Mount{HostPath: filepath.Join(l.Accounts, name, account.Name),
			ContainerPath: filepath.Join(limiter.AccountsOfClaims, gpu), Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}})
	}
	if l.Seats != nil {
		if err := l.Seats.Open(name, []limiter.Limit{limit}); err != nil {
			return specs.ContainerEdits{}, err
		}
		mounts = append(mounts, l.Seats.Mounts(name, []limiter.Limit{limit})...)
	}
	return specs.ContainerEdits{Mounts: mounts}, nil
}

// note describes the limits of a claim with this many shares of a GPU, for its owner. Empty: it has none.
func (l Limits) note(gpu string, allocated draplugin.AllocatedDevice, shares int) string {
	limit, limited := limitOf(gpu, allocated)
	if !limited {
		return ""
	}
	var parts []string
	if limit.Bytes > 0 {
		parts = append(parts, resource.NewQuantity(limit.Bytes, resource.BinarySI).String()+" of memory")
	}
	if limit.Cores > 0 {
		parts = append(parts, fmt.Sprintf("%d %% of the cores", limit.Cores))
	}
	share := strings.Join(parts, " and ")
	if l.Library == "" {
		return fmt.Sprintf("nothing on this node holds the claim's containers to %s of %s: they learn it by environment variables", share, gpu)
	}
	who := "the claim's containers"
	if l.Bytes == 0 {
		who = "each of the claim's containers"
	}
	note := fmt.Sprintf("libvgpu.so holds %s to %s of %s: a program that means to can go around it", who, share, gpu)
	if shares > 1 {
		note += fmt.Sprintf("; the claim has %d shares of that GPU: a container that uses several of them counts their sum by itself, and is "+
			"held to one's cores", shares)
	}
	return note
}

// remove removes a claim's limits. It may be repeated.
func (l Limits) remove(uid types.UID) error {
	return l.sweep(func(name string) bool { return strings.HasPrefix(name, string(uid)+"_") })
}

// keep removes the limits of all claims except those with records, readable or not.
func (l Limits) keep(records []claimstate.Record, aside []types.UID) error {
	live := map[string]bool{}
	for _, record := range records {
		live[string(record.UID)] = true
	}
	for _, uid := range aside {
		live[string(uid)] = true
	}
	return l.sweep(func(name string) bool {
		uid, _, _ := strings.Cut(name, "_")
		return !live[uid]
	})
}

// resume gives claims their directories again, which are gone after a boot of the node, and those with limits of cores their seats.
func (l Limits) resume(ctx context.Context) error {
	names, err := l.names()
	errs := []error{err}
	for _, name := range names {
		if l.Bytes > 0 {
			errs = append(errs, account.Make(filepath.Join(l.Accounts, name), true))
		}
	}
	if l.Seats == nil {
		return errors.Join(errs...)
	}
	l.Seats.Resume(ctx, names, func(name string) ([]limiter.Limit, error) {
		text, err := os.ReadFile(filepath.Join(l.Files, name))
		if err != nil {
			return nil, err
		}
		return limiter.Parse(text)
	})
	return errors.Join(errs...)
}

// sweep removes the files of the shares of these names.
func (l Limits) sweep(gone func(name string) bool) error {
	names, err := l.names()
	counted, unread := list(l.Accounts) // also of those whose limits a version without accounts removed
	errs := []error{err, unread}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(names, counted)))) {
		if !gone(name) {
			continue
		}
		if l.Seats != nil {
			errs = append(errs, l.Seats.Close(name))
		}
		// The file is last: while it is there, the rest is removed with it.
		switch err := tmpfs.Remove(filepath.Join(l.Accounts, name)); {
		case errors.Is(err, unix.EPERM):
			// The plugin is no longer privileged. A later start that is removes the rest; the claim must not wait for that.
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		}
		if err := os.Remove(filepath.Join(l.Files, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Share is a claim's share of a GPU that the library limits.
type Share struct {
	// Name is the name of its files: of its limits in the containers' limiter.Directory, and of its account's directory.
	Name  string
	Claim types.UID
	// GPU is the GPU's UUID.
	GPU string
}

// Shares returns the claims' shares that the library limits. It omits entries that cannot be read.
func (l Limits) Shares() []Share {
	names, err := l.names()
	if err != nil {
		return nil
	}
	var out []Share
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(l.Files, name))
		if err != nil {
			continue
		}
		uid, _, _ := strings.Cut(name, "_")
		if limits, err := limiter.Parse(text); err == nil && len(limits) == 1 {
			out = append(out, Share{Name: name, Claim: types.UID(uid), GPU: limits[0].UUID})
		}
	}
	return out
}

// names are the names (UID_INDEX) of the shares whose limits the library enforces.
func (l Limits) names() ([]string, error) { return list(l.Files) }

// list returns the names in a directory, which may be missing.
func list(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the limits of claims: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}
