// Package handover is how the GPU plugin, which owns a node's GPUs, and a device plugin that allocates some of them by other means agree on
// the owner of a GPU: the device plugin requests a GPU, the GPU plugin taints it in DRA and reports that, and only then is it registered
// elsewhere. So the scheduler can never see a GPU in both places as free.
//
// They are two processes that may restart at any time, so the agreement is files in a directory that both mount: UUID.requested names the
// requester, and UUID.tainted exists while every form of the GPU is published with the taint. A request outlives restarts of both.
package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/filewatch"
)

// Taint is the key of the taint that a GPU has in DRA while a device plugin offers it; its value is the requester.
const Taint = "gpufabric.io/device-plugin"

const requested, tainted = ".requested", ".tainted"

// Directory is the directory that both sides share, such as /var/lib/gpufabric/handover.
type Directory string

var gpuUUID = regexp.MustCompile(`^GPU-[0-9a-fA-F-]{8,36}$`)

// IsGPU reports whether text is a GPU's UUID.
func IsGPU(text string) bool { return gpuUUID.MatchString(text) }

func isOwner(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// Request requests GPUs on behalf of owner (a label value such as "volcano"), and withdraws owner's requests for all others.
func (d Directory) Request(owner string, uuids ...string) error {
	if !isOwner(owner) {
		return fmt.Errorf("request GPUs: owner %q, where a label value of lower case letters, digits and dashes is allowed", owner)
	}
	standing, err := d.Requests()
	if err != nil {
		return err
	}
	for uuid, other := range standing {
		if other == owner && !slices.Contains(uuids, uuid) {
			if err := os.Remove(d.path(uuid, requested)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("withdraw the request for %s: %w", uuid, err)
			}
		}
	}
	for _, uuid := range uuids {
		if !IsGPU(uuid) {
			return fmt.Errorf("request a GPU: %q is not a GPU's UUID", uuid)
		}
		if other, taken := standing[uuid]; taken && other != owner {
			return fmt.Errorf("request %s: %s has it; take it out of %s's configuration first", uuid, other, other)
		}
		if standing[uuid] == owner {
			continue
		}
		if err := d.write(uuid, requested, owner); err != nil {
			return err
		}
	}
	return nil
}

// Requests returns which role requests which GPU, by UUID. It ignores a file that is not a request: another version may have left it.
func (d Directory) Requests() (map[string]string, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read requests for GPUs: %w", err)
	}
	out := map[string]string{}
	for _, entry := range entries {
		uuid, found := strings.CutSuffix(entry.Name(), requested)
		if !found || !IsGPU(uuid) {
			continue
		}
		text, err := os.ReadFile(d.path(uuid, requested))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the request for %s: %w", uuid, err)
		}
		if owner := strings.TrimSpace(string(text)); isOwner(owner) {
			out[uuid] = owner
		}
	}
	return out, nil
}

// Confirm records that exactly these GPUs have the taint, as published. It removes the confirmation of all others.
func (d Directory) Confirm(uuids ...string) error {
	confirmed, err := d.Confirmed()
	if err != nil {
		return err
	}
	for uuid := range confirmed {
		if !slices.Contains(uuids, uuid) {
			if err := os.Remove(d.path(uuid, tainted)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("withdraw the confirmation that %s is tainted: %w", uuid, err)
			}
		}
	}
	for _, uuid := range uuids {
		if confirmed[uuid] {
			continue
		}
		if err := d.write(uuid, tainted, ""); err != nil {
			return err
		}
	}
	return nil
}

// Confirmed returns the GPUs that are confirmed to have the taint, by UUID.
func (d Directory) Confirmed() (map[string]bool, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the tainted GPUs: %w", err)
	}
	out := map[string]bool{}
	for _, entry := range entries {
		if uuid, found := strings.CutSuffix(entry.Name(), tainted); found {
			out[uuid] = true
		}
	}
	return out, nil
}

// Await waits until all of uuids are confirmed; files watches the directory. Its error at the end of ctx names those that are not.
func (d Directory) Await(ctx context.Context, files *filewatch.Watcher, uuids ...string) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := d.Watch(watching, files)
	if err != nil {
		return err
	}
	for {
		confirmed, err := d.Confirmed()
		if err != nil {
			return err
		}
		missing := slices.DeleteFunc(slices.Clone(uuids), func(uuid string) bool { return confirmed[uuid] })
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return fmt.Errorf("wait for the GPU plugin to taint %s in DRA: %w (does gpu-plugin run on this node, with the same handover "+
				"directory %s?)",
				strings.Join(missing, ", "), ctx.Err(), d)
		}
	}
}

// Watch signals changes of the directory until ctx ends. It makes the directory where it is missing. Several changes may give one
// signal.
func (d Directory) Watch(ctx context.Context, files *filewatch.Watcher) (<-chan struct{}, error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, fmt.Errorf("make the handover directory: %w", err)
	}
	return files.Entries(ctx, string(d)), nil
}

func (d Directory) path(uuid, suffix string) string { return filepath.Join(string(d), uuid+suffix) }

func (d Directory) write(uuid, suffix, text string) error {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("make the handover directory: %w", err)
	}
	return atomicfile.Writer{}.Write(d.path(uuid, suffix), []byte(text), 0o644)
}
