package cdi

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
)

const (
	// runtimeLook is how often unread specs are looked for. A look costs a stat for each spec.
	runtimeLook = 15 * time.Second
	// runtimePatience is how long after a container could ask for it a spec should have been read. A runtime that watches the directory reads
	// it at once, one whose watch failed when it creates the container, for which it may pull an image before.
	runtimePatience = time.Minute
	// runtimeRepeat is how often the trouble is reported again: Events live for an hour.
	runtimeRepeat = 30 * time.Minute
)

// Watch watches whether a container runtime reads the specs that containers wait for. containerd before 2.0 has CDI off unless it is
// configured, and then starts containers without their devices and says nothing; later ones refuse the container where it was switched off.
// A directory that the runtime does not look in, or that AppArmor or SELinux keeps from it, shows in the same way. The access time of a
// file shows it, so no right on the runtime's socket or configuration is wanted.
type Watch struct {
	// Unread names those who wait for a spec that nobody has read, and that they could ask for before a time. Its error says why that cannot
	// be known.
	Unread func(before time.Time) ([]string, error)
	// Tell reports something about the node as a whole, such as by an Event. reason is a CamelCase word.
	Tell func(reason, message string)

	// told is when the trouble was last reported, zero where there is none.
	told time.Time
	// blind is when it was last reported that the file system keeps no access times.
	blind time.Time
}

// Run reports when nobody reads the specs, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(runtimeLook)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			w.check(ctx, now)
		case <-ctx.Done():
			return
		}
	}
}

func (w *Watch) check(ctx context.Context, now time.Time) {
	logger := klog.FromContext(ctx)
	unread, err := w.Unread(now.Add(-runtimePatience))
	if err != nil {
		if now.Sub(w.blind) >= runtimeRepeat {
			message := fmt.Sprintf("%v: where containers lack their devices, or do not start, see whether the runtime has CDI on "+
				"(containerd: enable_cdi = true), and whether the kernel's log has refusals of AppArmor or SELinux", err)
			logger.Info("It is not watched whether the container runtime has CDI", "message", message)
			w.Tell("ContainerRuntimeNotWatched", message)
			w.blind = now
		}
		return
	}
	switch {
	case len(unread) == 0 && !w.told.IsZero():
		logger.Info("The container runtime reads CDI specs again")
		w.told = time.Time{}
	case len(unread) > 0 && now.Sub(w.told) >= runtimeRepeat:
		message := fmt.Sprintf("the container runtime of this node has not read the CDI specs of %s (%d in all) within %s: containers either do "+
			"not start or lack their devices. Switch CDI on in the runtime (containerd: enable_cdi = true, and cdi_spec_dirs with the directory of "+
			"the chart's value cdi.root), and see in the kernel's log that AppArmor or SELinux does not keep it from that directory",
			unread[0], len(unread), runtimePatience)
		logger.Error(nil, "CDI specs are not read", "message", message, "unread", unread)
		w.Tell("ContainerRuntimeReadsNoCDI", message)
		w.told = now
	}
}

// Read says whether a process has read a spec since it was written, and when it was written. A runtime with CDI reads a spec when it
// appears, or at the latest when a container asks for one of its devices; nobody else has a reason to. A file system that keeps no access
// times is an error, and so is a spec that is not there.
func Read(spec string) (read bool, written time.Time, err error) {
	if err := timed(spec); err != nil {
		return false, written, err
	}
	info, err := os.Stat(spec)
	if err != nil {
		return false, written, err
	}
	return !atomicfile.IsUnread(info), info.ModTime(), nil
}

// timed is an error where the file system of a path keeps no access times.
func timed(path string) error {
	var about unix.Statfs_t
	if err := unix.Statfs(path, &about); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	if about.Flags&unix.ST_NOATIME != 0 {
		return fmt.Errorf("whether a container runtime reads %s cannot be told: its file system is mounted noatime", path)
	}
	return nil
}
