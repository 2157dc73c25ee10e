// Package drain lets every role of a node close NVML together. NVIDIA's driver resets no GPU and unloads no module while a program
// has NVML open.
//
// The roles are processes of their own that may be killed at any time, so they agree through files in a directory that all of them
// mount. The file phase holds the state of the drain; gpu-plugin writes it. Each role that opens NVML keeps a file ROLE.member. Its
// text is the reason why the role has not closed NVML yet; it is empty once NVML is closed. The role holds a lock on the file (flock(2),
// which ends with its process) while it runs. A text without a lock is of a role that ended with NVML open. The drain waits for it, since
// pods may have GPUs that the role gave them.
//
// The phases and the transitions between them:
//
//	phase     event                                                        next
//	None      gpufabric drain, or a label of NVIDIA's GPU operator         Draining
//	Draining  every role has closed NVML                                   Drained
//	Draining  the command ends early, or the label is taken back           None
//	Draining  gpu-plugin starts again, and no label requested the drain    None
//	Drained   gpufabric undrain, or the label is taken back                None
//
// Coordinator takes the first three for gpu-plugin, which has the GPUs' taints and claims. On a node without one the command itself does,
// and for a label every other role. A drain of an administrator is not ended by a label (file operator).
package drain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/filewatch"
)

// Phase is the state of a node's drain.
type Phase string

// The phases.
const (
	// None: the GPUs are in use as always.
	None Phase = ""
	// Draining: the node allocates no further device, and waits for those in use.
	Draining Phase = "draining"
	// Drained: NVML is closed, and stays closed across restarts of roles and of the node.
	Drained Phase = "drained"
)

const (
	phaseFile    = "phase"
	memberSuffix = ".member"
)

// Taint keeps new claims off the GPUs of a node that is being drained.
const Taint = "gpufabric.io/drained"

// ErrDrained ends a use of NVML whose role has closed it for a drain.
var ErrDrained = errors.New("the node's GPUs are drained: NVML is closed")

// Directory is the directory that the roles of a node share.
type Directory struct {
	// Path is the same directory in every role; empty: the role does not take part in drains.
	Path string
	// Files reports its changes.
	Files *filewatch.Watcher
}

// SharedDirectory returns the drain directory of roles whose state is in stateDir. The default of --state-dir gives all of them the same.
func SharedDirectory(stateDir string) string {
	return filepath.Join(filepath.Dir(filepath.Clean(stateDir)), "drain")
}

// Phase returns the state of the drain. A file with unknown content counts as drained: a GPU may be in the middle of a reset, and
// gpufabric undrain ends the state.
func (d Directory) Phase() (Phase, error) {
	if d.Path == "" {
		return None, nil
	}
	text, err := os.ReadFile(d.file(phaseFile))
	if errors.Is(err, fs.ErrNotExist) {
		return None, nil
	}
	if err != nil {
		return Drained, fmt.Errorf("read whether the node's GPUs are drained: %w", err)
	}
	switch phase := Phase(strings.TrimSpace(string(text))); phase {
	case Draining, Drained:
		return phase, nil
	default:
		return Drained, fmt.Errorf("read whether the node's GPUs are drained: %s has %.40q, where %q or %q is allowed; run gpufabric undrain",
			d.file(phaseFile), phase, Draining, Drained)
	}
}

// Set moves the drain to a phase, durably.
func (d Directory) Set(phase Phase) error {
	if phase == None {
		if err := os.Remove(d.file(phaseFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the record that the node's GPUs are drained: %w", err)
		}
		return nil
	}
	if err := d.make(); err != nil {
		return err
	}
	if err := (atomicfile.Writer{}).Write(d.file(phaseFile), []byte(phase+"\n"), 0o644); err != nil {
		return fmt.Errorf("record that the node's GPUs are %s: %w", phase, err)
	}
	return nil
}

// Changes holds a token whenever the phase or a role's member file has changed, until ctx ends.
func (d Directory) Changes(ctx context.Context) (<-chan struct{}, error) {
	if err := d.make(); err != nil {
		return nil, err
	}
	return d.Files.Contents(ctx, d.Path), nil
}

func (d Directory) make() error {
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return fmt.Errorf("make the directory of the node's drains: %w", err)
	}
	return nil
}

func (d Directory) file(name string) string { return filepath.Join(d.Path, name) }
