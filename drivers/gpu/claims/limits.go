package claims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
)

// Limits enforces the limits of shares, of memory and of cores, with this project's library. With the zero value the limits are only
// environment variables, for a limiter in the container's image.
type Limits struct {
	// Library is the directory on the host that holds libvgpu.so and ld.so.preload; empty: there is none.
	Library string
	// Files is the directory with the limits of claims, at the same path here and on the host. No container can write there.
	Files  string
	Writer atomicfile.Writer
	// Turns gives the containers of shares their turns on a GPU; all containers of one share have these together. nil: each process
	// holds itself to its percentage.
	Turns *cores.Arbiter
}

// region is where a container's limiter counts: a tmpfs of its own, which is empty at each start of the container. It has space for
// the limiter's two files (2.2 MB). A claim that several containers use is counted in each of them separately.
func region() *specs.Mount {
	return &specs.Mount{HostPath: "tmpfs", ContainerPath: limiter.Accounts, Type: "tmpfs",
		Options: []string{"rw", "nosuid", "nodev", "noexec", "mode=1777", "size=8m", "nr_inodes=128"}}
}

// edits writes the limit of the claim's share with that index, and returns the edits that add the library to its containers. A
// share that asks for no memory has no limit.
func (l Limits) edits(uid types.UID, index int, gpu string, allocated draplugin.AllocatedDevice) (specs.ContainerEdits, error) {
	memory, limited := allocated.ConsumedCapacity[devices.CapMemory]
	if l.Library == "" || !limited || memory.Sign() <= 0 || allocated.Admin() {
		return specs.ContainerEdits{}, nil
	}
	limit := limiter.Limit{UUID: gpu, Bytes: memory.Value()}
	if percent, ok := allocated.ConsumedCapacity[devices.CapCores]; ok {
		limit.Cores = int(percent.Value())
	}
	text, err := limiter.Text([]limiter.Limit{limit}, false)
	if err != nil {
		return specs.ContainerEdits{}, draplugin.Refuse("InvalidConfig", "the share of %s: %w", gpu, err)
	}
	name := fmt.Sprintf("%s_%d", uid, index)
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
		region(),
	}
	if l.Turns != nil && limit.Cores > 0 {
		if err := l.Turns.Open(name, []limiter.Limit{limit}); err != nil {
			return specs.ContainerEdits{}, err
		}
		mounts = append(mounts, &specs.Mount{HostPath: l.Turns.Path(name), ContainerPath: filepath.Join(limiter.TurnsOfClaims, gpu),
			Options: read})
	}
	return specs.ContainerEdits{Mounts: mounts}, nil
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

// resume gives the claims that have limits of cores their turns again, after a restart of this program.
func (l Limits) resume(ctx context.Context) {
	if l.Turns == nil {
		return
	}
	l.Turns.Resume(ctx, func(name string) ([]limiter.Limit, error) {
		text, err := os.ReadFile(filepath.Join(l.Files, name))
		if err != nil {
			return nil, err
		}
		return limiter.Parse(text)
	})
}

func (l Limits) sweep(gone func(name string) bool) error {
	if l.Files == "" {
		return nil
	}
	entries, err := os.ReadDir(l.Files)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the limits of claims: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if gone(entry.Name()) {
			if l.Turns != nil {
				errs = append(errs, l.Turns.Close(entry.Name()))
			}
			if err := os.Remove(filepath.Join(l.Files, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
