package drain

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/orders"
)

const (
	// controlSocket is where the coordinating role takes orders, in its state directory, which only root can enter.
	controlSocket = "control.sock"
	// ReportInterval is how often a waiting drain checks its reasons without an event.
	ReportInterval = 5 * time.Second
)

// The orders, without arguments.
const (
	orderDrain   = "drain"
	orderUndrain = "undrain"
)

// Quiesce keeps new claims off the GPUs of a role, and waits until no pod has one through it. resume offers them again; it is valid
// after an error, too.
type Quiesce func(ctx context.Context, report orders.Report) (resume func(), err error)

// Role has the coordinating role's steps for its own GPUs.
type Role interface {
	// Started reports why the role has not read yet which pods have GPUs. Until then a drain fails, and changes no phase.
	Started() error
	// Quiesce is the role's own Quiesce.
	Quiesce(ctx context.Context, report orders.Report) (resume func(), err error)
	// CloseNVML makes the role close NVML, and call Coordinator.AwaitUndrain then. It does not wait for that.
	CloseNVML(report orders.Report)
	// Report writes an Event on the Node.
	Report(reason, message string)
}

// Coordinator drains the GPUs of a node for commands and for labels of NVIDIA's GPU operator. gpu-plugin runs it.
type Coordinator struct {
	Directory
	Role Role
	// Operator follows the labels.
	Operator *Operator

	// wanted: the node is to be drained. closed: the role has closed NVML.
	wanted, closed observed.Value[bool]
}

// NewCoordinator reads the state of an earlier run. A drain that was waiting then is over: its command has ended with the role. One for a
// label goes on: other roles have closed NVML for it, and the label, which is not read yet, decides. The Coordinator is valid after an
// error, too.
func NewCoordinator(d Directory, role Role) (*Coordinator, error) {
	c := &Coordinator{Directory: d, Role: role}
	c.Operator = &Operator{Directory: d, Pause: &observed.Value[Pause]{}, Drain: c.drainFor, Undrain: c.undrain}
	phase, err := d.Phase()
	c.wanted.Set(phase == Drained)
	if phase == Draining && d.By() == "" {
		err = d.Set(None)
	}
	return c, err
}

// Run follows the node's labels, and takes orders in a state directory, until ctx ends.
func (c *Coordinator) Run(ctx context.Context, client kubernetes.Interface, node, stateDir string) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.Operator.Run(ctx) })
	wg.Go(func() {
		if err := WatchPause(ctx, client, node, c.Operator.Pause); err != nil {
			klog.FromContext(ctx).Error(err, "Could not watch the labels of NVIDIA's GPU operator")
		}
	})
	allowed := map[string]orders.Order{
		orderDrain: func(ctx context.Context, _ url.Values, report orders.Report) error {
			if err := c.Operator.TakeOver(ctx); err != nil {
				return err
			}
			return c.drain(ctx, report)
		},
		orderUndrain: func(ctx context.Context, _ url.Values, _ orders.Report) error {
			return errors.Join(c.undrain(), c.Operator.Disown(ctx))
		},
	}
	orders.Serve(ctx, filepath.Join(stateDir, controlSocket), allowed, func(err error) {
		klog.FromContext(ctx).Error(err, "gpufabric drain is not served")
		c.Role.Report("DrainNotServed", err.Error())
	})
}

// Wanted reports whether the role must not open NVML.
func (c *Coordinator) Wanted() bool { return c.wanted.Now() }

// AwaitUndrain waits until the role may open NVML, which it has closed. Its error is the cause of ctx's end.
func (c *Coordinator) AwaitUndrain(ctx context.Context) error {
	c.closed.Set(true)
	defer c.closed.Set(false)
	if _, undrained := c.wanted.Await(ctx, func(wanted bool) bool { return !wanted }); !undrained {
		return context.Cause(ctx)
	}
	return nil
}

// drain keeps new claims off the GPUs, waits until the present ones have ended, and makes all roles of the node close NVML.
func (c *Coordinator) drain(ctx context.Context, report orders.Report) error {
	if !c.Wanted() {
		if err := c.Role.Started(); err != nil {
			return err
		}
		if err := c.empty(ctx, c.Role.Quiesce, report); err != nil {
			return err
		}
	}
	if err := c.Set(Drained); err != nil {
		return err
	}
	c.wanted.Set(true)
	c.Role.CloseNVML(report)
	if _, closed := c.closed.Await(ctx, func(closed bool) bool { return closed }); !closed {
		return fmt.Errorf("wait for this role to close NVML: %w", context.Cause(ctx))
	}
	if err := c.awaitBlockers(ctx, report); err != nil { // roles of a node that was drained already may have come back
		return err
	}
	report("every role of this driver has closed NVML, and leaves the GPUs alone until gpufabric undrain, also when it is started again")
	return nil
}

// drainFor is a drain for a label of NVIDIA's GPU operator.
func (c *Coordinator) drainFor(ctx context.Context, by string) error {
	return c.drain(ctx, func(format string, arguments ...any) {
		message := fmt.Sprintf(format, arguments...)
		klog.FromContext(ctx).Info(message, "label", by)
		if strings.HasPrefix(message, "waiting") {
			c.Role.Report("DriverUpgradeWaits", "label "+by+" requests that clients of the driver leave this node: "+message)
		}
	})
}

// undrain offers the GPUs again.
func (c *Coordinator) undrain() error {
	if err := c.Set(None); err != nil {
		return err
	}
	c.wanted.Set(false)
	return nil
}

// empty waits until no pod has a GPU of the node through its roles. If it fails, the GPUs are offered as before.
func (d Directory) empty(ctx context.Context, quiesce Quiesce, report orders.Report) error {
	if err := d.Set(Draining); err != nil {
		return err
	}
	resume, err := quiesce(ctx, report)
	if err == nil {
		err = d.awaitBlockers(ctx, report)
	}
	if err != nil {
		resume()
		return errors.Join(fmt.Errorf("%w: the GPUs are offered again", err), d.Set(None))
	}
	return nil
}

// awaitBlockers waits until the node's roles have closed NVML, and reports the reason of each that has not.
func (d Directory) awaitBlockers(ctx context.Context, report orders.Report) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := d.Changes(watching)
	if err != nil {
		return err
	}
	tick := time.NewTicker(ReportInterval) // where directories cannot be watched, a killed role changes no file
	defer tick.Stop()
	for last := ""; ; {
		blockers, err := d.Blockers()
		if err != nil {
			return err
		}
		if len(blockers) == 0 {
			return nil
		}
		texts := make([]string, len(blockers))
		for i, b := range blockers {
			texts[i] = b.String()
		}
		if now := strings.Join(texts, "; "); now != last {
			report("waiting: %s", now)
			last = now
		}
		select {
		case <-changes:
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("given up while waiting for %s", last)
		}
	}
}
