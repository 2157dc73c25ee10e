package sharing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/store"
	"gpufabric.io/drivers/node/tmpfs"
)

const (
	// restartPause is the time between two starts of a control daemon.
	restartPause = time.Second
	// containerPipes is where a client looks for its daemon.
	containerPipes = "/tmp/nvidia-mps"
)

// Daemons runs an MPS control daemon for each claim that requests one.
type Daemons interface {
	// Start makes sure that a claim's daemon runs and is set up when it returns. It leaves a daemon with these settings alone, and
	// ends one with others.
	Start(ctx context.Context, claim types.UID, s Settings) error
	// Resume is like Start, but keeps any daemon that the claim already has.
	Resume(ctx context.Context, claim types.UID, s Settings) error
	// Stop ends a claim's daemon and removes its directories. It may be repeated.
	Stop(ctx context.Context, claim types.UID) error
	// Retain stops every claim but these, which are those that existed at a moment. It leaves a claim alone whose daemon was requested
	// since then.
	Retain(ctx context.Context, at Moment, claims []types.UID) error
}

// MPS runs the daemons as children of this process. When it ends they end, and the claims' programs with them; when it starts again
// it starts them again. See Keeper for daemons that outlive the node plugin.
type MPS struct {
	// Dir holds a directory for each claim (see directory). It should be on a tmpfs of the host (/run/gpufabric/mps).
	Dir string
	// Programs runs nvidia-cuda-mps-control.
	Programs programs.Runner
	// Bounds are the size of the /dev/shm of a claim's containers; zero: no limit, also for its pipes and logs.
	Bounds tmpfs.Bounds

	// failures counts daemons that ended by themselves.
	failures atomic.Int64

	mu      sync.Mutex
	daemons map[types.UID]*daemon
	// files watches the directories of all daemons that are being started, with one inotify instance, which it opens only for that
	// time.
	files *filewatch.Watcher
}

var _ Daemons = (*MPS)(nil)

func (m *MPS) directory(claim types.UID) directory {
	return directory{dir: m.Dir, claim: claim, bounds: m.Bounds}
}

// Start implements Daemons.
func (m *MPS) Start(ctx context.Context, claim types.UID, s Settings) error {
	d, err := m.begin(ctx, claim, s, false)
	if err != nil {
		return err
	}
	return m.settle(ctx, claim, d)
}

// Resume implements Daemons.
func (m *MPS) Resume(ctx context.Context, claim types.UID, s Settings) error {
	d, err := m.begin(ctx, claim, s, true)
	if err != nil {
		return err
	}
	return m.settle(ctx, claim, d)
}

// begin starts to keep a claim's daemon running. It keeps a running one that has these settings, or any where any will do.
func (m *MPS) begin(ctx context.Context, claim types.UID, s Settings, any bool) (*daemon, error) {
	m.mu.Lock()
	old := m.daemons[claim]
	m.mu.Unlock()
	if old != nil && !any && !equality.Semantic.DeepEqual(old.settings, s) {
		m.drop(claim, old)
	}
	if _, err := m.Programs.Driver().Root.Program(control); err != nil {
		return nil, fmt.Errorf("MPS needs the driver's control daemon: %w", err)
	}
	if s.multiUser() {
		if err := m.checkMultiUser(ctx, claim); err != nil {
			return nil, err
		}
	}
	return m.keep(ctx, claim, s), nil
}

// errStopped is why an awaited daemon will never be set up.
var errStopped = errors.New("the MPS control daemon was stopped while it was started")

// settle waits until a daemon is set up. If that fails the daemon is no longer kept running.
func (m *MPS) settle(ctx context.Context, claim types.UID, d *daemon) error {
	select {
	case <-d.settled:
	case <-d.ended:
		return errStopped
	case <-ctx.Done():
		m.drop(claim, d)
		err := fmt.Errorf("wait for the MPS control daemon to make %s: %w", m.directory(claim).control(), context.Cause(ctx))
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

// checkMultiUser reports an error where the control daemon has no flag for clients of several users, by its help: one without it
// (550.163.01) acts as a client, and reports that there is no daemon. The program's file may be a script that runs another one.
func (m *MPS) checkMultiUser(ctx context.Context, claim types.UID) error {
	share := programs.Share{Mountpoint: m.directory(claim).path("root"), Nodes: []string{}, Unprivileged: true, Apart: true}
	cmd, err := m.Programs.Command(ctx, share, control, "-h")
	if err != nil {
		return fmt.Errorf("MPS needs the driver's control daemon: %w", err)
	}
	help, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("sharing.mpsConfig.multiUser: %s -h: %w: %s", control, programs.Explain(err), firstLine(string(help)))
	}
	if !strings.Contains(string(help), strings.TrimPrefix(multiUserFlag, "-")) {
		return fmt.Errorf("sharing.mpsConfig.multiUser: %s -h lists no %s: leave multiUser out, or install a newer driver", control,
			multiUserFlag)
	}
	return nil
}

// keep returns the claim's daemon, and starts to keep one running where there is none.
func (m *MPS) keep(ctx context.Context, claim types.UID, s Settings) *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.daemons[claim]; d != nil {
		d.requested = Now()
		return d
	}
	// The daemon outlives the call that started it.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	if m.daemons == nil {
		m.daemons, m.files = map[types.UID]*daemon{}, &filewatch.Watcher{Interval: lookPause}
	}
	d := &daemon{
		directory: m.directory(claim), programs: m.Programs, settings: s, requested: Now(), files: m.files,
		failed: func() { m.failures.Add(1) }, stop: stop, ended: make(chan struct{}), settled: make(chan struct{}),
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

// Retain implements Daemons.
func (m *MPS) Retain(_ context.Context, at Moment, claims []types.UID) error {
	known, err := m.known()
	if err != nil {
		return err
	}
	var errs []error
	for _, claim := range known {
		if !slices.Contains(claims, claim) {
			errs = append(errs, m.forget(claim, at))
		}
	}
	return errors.Join(errs...)
}

// forget stops a claim's daemon, unless it was requested after a moment.
func (m *MPS) forget(claim types.UID, at Moment) error {
	m.mu.Lock()
	d := m.daemons[claim]
	if d == nil {
		defer m.mu.Unlock() // so that no daemon starts to use the directory before
		return m.directory(claim).remove()
	}
	requested := d.requested
	m.mu.Unlock()
	if requested > at {
		return nil
	}
	m.drop(claim, d)
	return m.forget(claim, at)
}

// known are the claims that have a daemon, or a directory of one.
func (m *MPS) known() ([]types.UID, error) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the directory of MPS control daemons: %w", err)
	}
	m.mu.Lock()
	out := slices.Collect(maps.Keys(m.daemons))
	m.mu.Unlock()
	for _, entry := range entries {
		if entry.IsDir() && claimPattern.MatchString(entry.Name()) && entry.Name() != store.AsideName {
			out = append(out, types.UID(entry.Name()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
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
