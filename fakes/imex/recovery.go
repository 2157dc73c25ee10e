package imex

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// RecoveryName is the file in which a daemon records its state for a start after an unclean end.
const RecoveryName = "persist.dat"

// PersistDir is the real daemon's directory; a container must keep it across restarts.
const PersistDir = "/var/run/nvidia-imex"

// The recovery mark lists the addresses with which a READY daemon was connected. A clean end removes it. So a daemon that finds one
// follows one that died, and with QuorumRecovery waits for those peers.

func (d *Daemon) mark() string { return filepath.Join(d.options.PersistDir, RecoveryName) }

// remember updates the file of recovery.
func (d *Daemon) remember() {
	now := d.connected()
	if d.options.PersistDir == "" || slices.Equal(now, d.remembered) {
		return
	}
	d.remembered = now
	err := os.MkdirAll(d.options.PersistDir, 0o755)
	if err == nil {
		err = os.WriteFile(d.mark(), []byte(strings.Join(now, "\n")), 0o644)
	}
	if err != nil {
		d.options.Log.Warn("cannot write the recovery file", "error", err)
	}
}

func (d *Daemon) forget() {
	if d.options.PersistDir != "" {
		_ = os.Remove(d.mark()) // a missing file is fine
	}
}

// recoverable lists the marked addresses that are still peers. It does not wait for those of another, earlier domain.
func (d *Daemon) recoverable() []string {
	if d.options.PersistDir == "" {
		return nil
	}
	data, err := os.ReadFile(d.mark())
	if err != nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var lost []string
	for _, p := range d.peers {
		if p.index != d.self && p.addr.IsValid() && slices.Contains(strings.Fields(string(data)), p.addr.String()) {
			lost = append(lost, p.addr.String())
		}
	}
	return lost
}

// connected lists the addresses of the peers that are connected now.
func (d *Daemon) connected() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, p := range d.peers {
		if p.index != d.self && p.status == Connected {
			all = append(all, p.addr.String())
		}
	}
	return all
}
