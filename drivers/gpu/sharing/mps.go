package sharing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/node/filewatch"
)

const (
	// restartPause is the time before a control daemon that ended is started again.
	restartPause = time.Second
	// containerPipes is where a client looks for its daemon.
	containerPipes = "/tmp/nvidia-mps"
)

// Daemons runs an MPS control daemon for each claim that asks for one.
type Daemons interface {
	// Start has a daemon for the claim running and set up when it returns. One that runs with these settings already is left alone, one with others ends.
	Start(ctx context.Context, claim types.UID, s Settings) error
	// Resume is Start where any daemon that the claim has already is the right one.
	Resume(ctx context.Context, claim types.UID, s Settings) error
	// Stop ends a claim's daemon and removes its directories. It may be repeated.
	Stop(ctx context.Context, claim types.UID) error
}

// MPS runs the daemons as children of this process: when it ends they end, and the claims' programs with them; when it starts again it starts them again. See
// Keeper for those that outlive the node plugin.
type MPS struct {
	// Dir holds a directory a claim (see directory). It should be on a tmpfs of the host's (/run/gpufabric/mps).
	Dir string
	// Programs runs nvidia-cuda-mps-control.
	Programs programs.Runner

	mu      sync.Mutex
	daemons map[types.UID]*daemon
	// files watches the directories of all daemons that are being started, with one inotify instance, which it has only meanwhile.
	files *filewatch.Watcher
}

var _ Daemons = (*MPS)(nil)

func (m *MPS) directory(claim types.UID) directory { return directory{dir: m.Dir, claim: claim} }

// Start implements Daemons.
func (m *MPS) Start(ctx context.Context, claim types.UID, s Settings) error {
	m.mu.Lock()
	old := m.daemons[claim]
	m.mu.Unlock()
	if old != nil && !equality.Semantic.DeepEqual(old.settings, s) {
		m.drop(claim, old)
	}
	return m.Resume(ctx, claim, s)
}

// Resume implements Daemons.
func (m *MPS) Resume(ctx context.Context, claim types.UID, s Settings) error {
	program, err := m.Programs.Driver().Root.Program(control)
	if err != nil {
		return fmt.Errorf("MPS needs the driver's control daemon: %w", err)
	}
	if s.multiUser() {
		if err := knowsMultiUser(program); err != nil {
			return err
		}
	}
	d := m.keep(ctx, claim, s)
	select {
	case <-d.settled:
	case <-d.ended:
		return errors.New("the MPS control daemon was stopped while it was started")
	case <-ctx.Done():
		m.drop(claim, d)
		err := fmt.Errorf("waiting for the MPS control daemon to make %s: %w", m.directory(claim).control(), context.Cause(ctx))
		if last := d.noted(); last != nil {
			err = fmt.Errorf("%w; it ended with %w, and its log is in %s", err, last, m.directory(claim).path("log"))
		}
		return err
	}
	if err := d.noted(); err != nil {
		m.drop(claim, d)
		return err
	}
	return nil
}

// knowsMultiUser looks for the flag in the control daemon's text. One that does not know it (550.163.01, say) takes itself for a client, and says that no daemon
// is there.
func knowsMultiUser(program string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("MPS needs the driver's control daemon: %w", err)
	}
	if !bytes.Contains(text, []byte(strings.TrimPrefix(multiUserFlag, "-"))) {
		return fmt.Errorf("sharing.mpsConfig.multiUser: %s does not know %s: leave multiUser out, or install a newer driver", program, multiUserFlag)
	}
	return nil
}

// keep returns the claim's daemon, which it begins to keep running where there is none.
func (m *MPS) keep(ctx context.Context, claim types.UID, s Settings) *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.daemons[claim]; d != nil {
		return d
	}
	// The daemon outlives the call that started it.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	if m.daemons == nil {
		m.daemons, m.files = map[types.UID]*daemon{}, &filewatch.Watcher{Interval: lookPause}
	}
	d := &daemon{
		directory: m.directory(claim), programs: m.Programs, settings: s, files: m.files, stop: stop, ended: make(chan struct{}), settled: make(chan struct{}),
	}
	m.daemons[claim] = d
	go d.supervise(klog.NewContext(life, klog.FromContext(ctx).WithValues("claimUID", claim)))
	return d
}

// drop ends a daemon.
func (m *MPS) drop(claim types.UID, d *daemon) {
	m.mu.Lock()
	if m.daemons[claim] == d {
		delete(m.daemons, claim)
	}
	m.mu.Unlock()
	d.stop()
	<-d.ended
}

// Stop implements Daemons.
func (m *MPS) Stop(_ context.Context, claim types.UID) error {
	m.mu.Lock()
	d := m.daemons[claim]
	m.mu.Unlock()
	if d != nil {
		m.drop(claim, d)
	}
	return m.directory(claim).remove()
}

// Close ends every daemon and leaves its directories, for the next run.
func (m *MPS) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.daemons {
		d.stop()
	}
	for claim, d := range m.daemons {
		<-d.ended
		delete(m.daemons, claim)
	}
}
