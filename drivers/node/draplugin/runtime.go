package draplugin

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

const (
	// runtimeLook is how often unread specs are looked for. A look costs a stat for each prepared claim.
	runtimeLook = 15 * time.Second
	// runtimePatience is how long after it was written a spec should have been read. A runtime that watches the directory reads it at once,
	// one whose watch failed when it creates the container, for which it may pull an image before.
	runtimePatience = time.Minute
	// runtimeRepeat is how often the trouble is reported again: Events live for an hour.
	runtimeRepeat = 30 * time.Minute
)

// reader watches whether a container runtime reads the specs of prepared claims. containerd before 2.0 has CDI off unless it is configured,
// and then starts containers without their devices and says nothing; later ones refuse the container where it was switched off. A directory
// that the runtime does not look in, or that AppArmor or SELinux keeps from it, shows in the same way. The access time of a file tells it,
// so no right on the runtime's socket or configuration is wanted.
type reader struct {
	look func() (unread []string, err error)
	tell func(reason, message string)
	// told is when the trouble was last reported, zero where there is none.
	told time.Time
	// blind is set when the file system was found to keep no access times.
	blind bool
}

// watchRuntime reports on the node when nobody reads the specs, until ctx ends.
func (p *Plugin) watchRuntime(ctx context.Context) {
	r := reader{look: p.unread, tell: p.report.node}
	tick := time.NewTicker(runtimeLook)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			r.check(ctx, now)
		case <-ctx.Done():
			return
		}
	}
}

// unread names the claims whose specs nobody has read for too long.
func (p *Plugin) unread() ([]string, error) {
	claims, err := p.cdi.Unread(time.Now().Add(-runtimePatience))
	var names []string
	for _, uid := range claims {
		if record, ok := p.state.Get(uid); ok {
			names = append(names, record.Namespace+"/"+record.Name)
		}
	}
	return names, err
}

func (r *reader) check(ctx context.Context, now time.Time) {
	logger := klog.FromContext(ctx)
	unread, err := r.look()
	if err != nil {
		if !r.blind {
			logger.Info("It is not watched whether the container runtime has CDI", "err", err)
		}
		r.blind = true
		return
	}
	switch {
	case len(unread) == 0 && !r.told.IsZero():
		logger.Info("The container runtime reads CDI specs again")
		r.told = time.Time{}
	case len(unread) > 0 && now.Sub(r.told) >= runtimeRepeat:
		message := fmt.Sprintf("the container runtime of this node has not read the CDI specs of %d claims (%s) %s after they were written: "+
			"containers either do not start or "+
			"lack their devices. Switch CDI on in the runtime (containerd: enable_cdi = true, and cdi_spec_dirs with the directory of the "+
			"chart's value cdi.root), and see "+
			"in the kernel's log that AppArmor or SELinux does not keep it from that directory", len(unread), unread[0], runtimePatience)
		logger.Error(nil, "CDI specs are not read", "message", message, "claims", unread)
		r.tell("ContainerRuntimeReadsNoCDI", message)
		r.told = now
	}
}
