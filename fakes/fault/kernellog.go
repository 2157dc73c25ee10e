package fault

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// kernelLogSize is the size at which a log is moved to kern.log.1, and another one begun.
const kernelLogSize = 1 << 20

// logXID writes an XID as the driver writes it into the kernel's log, in the lines of rsyslog's kern.log, which programs that watch a file
// read: node-problem-detector's filelog, Promtail, Fluent Bit.
func (c *change) logXID(gpu int, code uint64) error {
	text := "injected by fakefabric"
	if code == xidOffTheBus {
		text = "GPU has fallen off the bus."
	}
	var core state.Core
	if err := c.file.View(func(b *state.Body) { core = b.GPUs[gpu].Core }); err != nil {
		return err
	}
	address := fmt.Sprintf("PCI:%04x:%02x:%02x", core.Domain, core.Bus, core.Device)
	return c.kernelLog(fmt.Sprintf("NVRM: GPU at %s: GPU-%s", address, profile.FormatUUID(core.UUID)),
		fmt.Sprintf("NVRM: Xid (%s): %d, pid='<unknown>', name=<unknown>, %s", address, code, text))
}

// kernelLog adds lines to the node's kernel log.
func (c *change) kernelLog(lines ...string) (err error) {
	path := state.KernelLog(c.root)
	if info, err := os.Stat(path); err == nil && info.Size() >= kernelLogSize {
		if err := os.Rename(path, path+".1"); err != nil {
			return fmt.Errorf("kernel log: %w", err)
		}
	}
	rendered, err := tree.ReadRendered(c.root)
	if err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	var since unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &since); err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, line := range lines {
		if _, err := fmt.Fprintf(f, "%s %s kernel: [%5d.%06d] %s\n", time.Now().Format(time.Stamp), rendered.Hostname, since.Sec, since.Nsec/1000,
			line); err != nil {
			return fmt.Errorf("kernel log: %w", err)
		}
	}
	return nil
}
