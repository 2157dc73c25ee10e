package memorylimits

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/filewatch"
)

// notify triggers a reading of the records by Run.
func (k *Keeper) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// events is the file of a cgroup that reports whether it, or a cgroup below it, has processes (cgroup-v2.rst).
const events = "cgroup.events"

// Run releases each container when its last process has ended, until ctx ends. A caller that is notified of ends from the runtime calls
// Release as well; the second release does nothing.
func (k *Keeper) Run(ctx context.Context, files *filewatch.Watcher) error {
	var followers sync.WaitGroup
	defer followers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := map[string]context.CancelFunc{}
	for {
		for _, id := range k.records.Names() {
			r, known := k.records.Get(id)
			if followed[id] != nil || !known {
				continue
			}
			follow, stop := context.WithCancel(ctx)
			followed[id] = stop
			changes := files.Modified(follow, r.Cgroup, events)
			followers.Go(func() { k.follow(follow, id, r.Cgroup, changes) })
		}
		for id, stop := range followed {
			if _, known := k.records.Get(id); !known {
				stop()
				delete(followed, id)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		}
	}
}

// follow releases a container when its cgroup has no processes any more, or is gone. It has some from the beginning: runc's own
// process waits in it for the start.
func (k *Keeper) follow(ctx context.Context, id, cgroup string, changes <-chan struct{}) {
	for {
		runs, err := populated(cgroup)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !runs {
			if err := k.Release(ctx, id); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Memory of GPUs may stay reserved for a container that has ended", "container", id)
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
	}
}

// populated reports whether a cgroup has processes.
func populated(cgroup string) (bool, error) {
	text, err := os.ReadFile(filepath.Join(cgroup, events))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == "populated 1" {
			return true, nil
		}
	}
	return false, nil
}
