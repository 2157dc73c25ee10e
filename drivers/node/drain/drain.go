// Package drain lets every role of a node close NVML together. NVIDIA's driver resets no GPU and unloads no module while a program
// has NVML open.
//
// The roles are processes of their own that may be killed at any time, so they agree through files in a directory that all of them
// mount. The file phase holds the state of the drain; gpu-plugin writes it. Each role that opens NVML keeps a file ROLE.member. Its
// text is the reason why the role has not closed NVML yet; it is empty once NVML is closed. The role holds a lock on the file (flock(2),
// which ends with its process) while it runs. A text without a lock is of a role that ended with NVML open. The drain waits for it, since
// pods may have GPUs that the role gave them.
package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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

// ErrLetGo ends a use of NVML whose role has closed it for a drain.
var ErrLetGo = errors.New("the node's GPUs are drained: NVML is closed")

// Directory is the directory that the roles of a node share.
type Directory struct {
	// Path is the same directory in every role; empty: the role takes no part in drains.
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
		return Drained, fmt.Errorf("read whether the node's GPUs are drained: %s says %.40q, where %q or %q is allowed; run gpufabric undrain",
			d.file(phaseFile), phase, Draining, Drained)
	}
}

// Set moves the drain to a phase, durably.
func (d Directory) Set(phase Phase) error {
	if phase == None {
		if err := os.Remove(d.file(phaseFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget that the node's GPUs are drained: %w", err)
		}
		return nil
	}
	if err := d.make(); err != nil {
		return err
	}
	if err := (atomicfile.Writer{}).Write(d.file(phaseFile), []byte(phase+"\n"), 0o644); err != nil {
		return fmt.Errorf("remember that the node's GPUs are %s: %w", phase, err)
	}
	return nil
}

// Holder is a role that has not closed NVML.
type Holder struct {
	Role string
	// Why is the reason why the role has not closed NVML.
	Why string
	// Ended is set for a role that does not run.
	Ended bool
	// file is the role's member file.
	file string
}

func (h Holder) String() string {
	if h.Ended {
		return fmt.Sprintf("%s ended while %s: start it again, and it closes NVML; if it is uninstalled, remove %s", h.Role, h.Why, h.file)
	}
	return h.Role + ": " + h.Why
}

// Holders returns the roles that have not closed NVML, sorted by name.
func (d Directory) Holders() ([]Holder, error) {
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check which roles have NVML open: %w", err)
	}
	var out []Holder
	for _, entry := range entries {
		role, is := strings.CutSuffix(entry.Name(), memberSuffix)
		if !is {
			continue
		}
		why, ended, err := examine(d.file(entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("check whether %s has NVML open: %w", role, err)
		}
		if why != "" {
			out = append(out, Holder{Role: role, Why: why, Ended: ended, file: d.file(entry.Name())})
		}
	}
	slices.SortFunc(out, func(a, b Holder) int { return strings.Compare(a.Role, b.Role) })
	return out, nil
}

// TakesPart reports whether a role of this name has taken part in drains on this node, and so closes NVML by itself.
func (d Directory) TakesPart(role string) bool {
	_, err := os.Lstat(d.file(role + memberSuffix))
	return d.Path != "" && err == nil
}

// examine reads a role's member file. ended: the role no longer runs.
func examine(path string) (why string, ended bool, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	defer func() { _ = file.Close() }() // this releases the lock, too
	text := make([]byte, 1024)
	n, err := file.Read(text)
	if errors.Is(err, io.EOF) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read %s: %w", path, err)
	}
	err = flock(file, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return "", false, fmt.Errorf("lock %s: %w", path, err)
	}
	return strings.TrimSpace(string(text[:n])), err == nil, nil
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
		return fmt.Errorf("make the directory by which the roles of a node agree on drains: %w", err)
	}
	return nil
}

func (d Directory) file(name string) string { return filepath.Join(d.Path, name) }

func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) { //nolint:gosec // a descriptor is an int
			return err
		}
	}
}
