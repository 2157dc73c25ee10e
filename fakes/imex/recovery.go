package imex

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// RecoveryName is the file in which a daemon keeps what it must know after an end that was not in order.
const RecoveryName = "persist.dat"

// PersistDir is where the real daemon has it; a container must keep that directory over its own end.
const PersistDir = "/var/run/nvidia-imex"

// The recovery mark lists the addresses that a READY daemon was connected with. A clean end takes it away, so a daemon that finds one
// follows one that died, and with QuorumRecovery waits for those peers.

func (d *Daemon) mark() string { return filepath.Join(d.options.PersistDir, RecoveryName) }

// remember brings the mark up to date.
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
		d.options.Log.Warn("cannot leave the mark for recovery", "error", err)
	}
}

func (d *Daemon) forget() {
	if d.options.PersistDir != "" {
		_ = os.Remove(d.mark()) // where there is none, there is none
	}
}

// recoverable lists the marked addresses that are still peers: those of another domain, long gone, are not waited for.
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
