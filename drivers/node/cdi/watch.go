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
	// runtimeLook is how often the watch looks for unread specs. It costs one stat per spec.
	runtimeLook = 15 * time.Second
	// runtimePatience is the time within which the runtime should read a spec after a container could use it. A runtime that watches the
	// directory reads it at once. One whose watch failed reads it when it creates the container, possibly after pulling an image.
	runtimePatience = time.Minute
	// runtimeRepeat is how often the trouble is reported again: Events live for an hour.
	runtimeRepeat = 30 * time.Minute
)

// Watch checks that a container runtime reads the specs that containers wait for. containerd before 2.0 has CDI off by default: it
// starts containers without their devices and does not report an error. Later versions refuse the container where CDI was switched off. A
// directory that the runtime does not search, or that AppArmor or SELinux keeps from it, looks the same. The file's access time
// shows all of these, so the watch does not need access to the runtime's socket or configuration.
type Watch struct {
	// Unread returns the names of the owners of specs that were not read, and that were available before a time. An error means that reads
	// cannot be seen.
	Unread func(before time.Time) ([]string, error)
	// Report reports a problem of the node as a whole, for example as an Event. reason is a CamelCase word.
	Report func(reason, message string)

	// reported is when the problem was last reported, zero where there is none.
	reported time.Time
	// blind is when the watch last reported that the file system does not keep access times.
	blind time.Time
}

// Run reports unread specs until ctx ends.
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
			logger.Info("Not watching whether the container runtime has CDI on", "message", message)
			w.Report("ContainerRuntimeNotWatched", message)
			w.blind = now
		}
		return
	}
	switch {
	case len(unread) == 0 && !w.reported.IsZero():
		logger.Info("The container runtime reads CDI specs again")
		w.reported = time.Time{}
	case len(unread) > 0 && now.Sub(w.reported) >= runtimeRepeat:
		message := fmt.Sprintf("the container runtime of this node has not read the CDI specs of %s (%d in all) within %s: containers either do "+
			"not start or lack their devices. Switch CDI on in the runtime (containerd: enable_cdi = true, and cdi_spec_dirs with the directory of "+
			"the chart's value cdi.root), and see in the kernel's log that AppArmor or SELinux does not keep it from that directory",
			unread[0], len(unread), runtimePatience)
		logger.Error(nil, "CDI specs are not read", "message", message, "unread", unread)
		w.Report("ContainerRuntimeReadsNoCDI", message)
		w.reported = now
	}
}

// Read reports whether a process has read a spec since it was written, and when it was written. A runtime with CDI reads a spec when
// it appears, or at the latest when a container asks for one of its devices. No other program has a reason to. It returns an error
// where the file system does not keep access times or the spec does not exist.
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

// timed returns an error where the file system of a path does not keep access times.
func timed(path string) error {
	var about unix.Statfs_t
	if err := unix.Statfs(path, &about); err != nil {
		return fmt.Errorf("read the mount options of %s: %w", path, err)
	}
	if about.Flags&unix.ST_NOATIME != 0 {
		return fmt.Errorf("cannot determine whether a container runtime reads %s: its file system is mounted noatime", path)
	}
	return nil
}
