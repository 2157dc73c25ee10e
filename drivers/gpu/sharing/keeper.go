package sharing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/httpserver"
	"gpufabric.io/drivers/node/store"
	"gpufabric.io/drivers/node/unixsocket"
)

// lockPause is the time between two tries to take a lock that another process has.
const lockPause = 300 * time.Millisecond

// Keeper is the parent of a node's MPS control daemons, in its own process: they keep running while the node plugin restarts and is
// upgraded. The node plugin requests them over a Unix socket; only root on the node can open it.
//
// It stores its requests on disk. When it was killed itself, and its daemons with it, it starts them again.
type Keeper struct {
	MPS    *MPS
	Writer atomicfile.Writer
	// Metrics registers the metric of the settings that cannot be read; nil: it is not registered.
	Metrics prometheus.Registerer
}

// Files in the directory of all claims, which no container has mounted.
func socketIn(dir string) string { return filepath.Join(dir, "keeper.sock") }
func lockIn(dir string) string   { return filepath.Join(dir, "keeper.lock") }

// settingsFormat describes how a claim's Settings are stored in the directory of the claim's daemon: byte for byte as the keeper got
// them, so that unknown fields are kept.
func settingsFormat() store.Format[json.RawMessage] {
	return store.Format[json.RawMessage]{Name: "gpufabric-mps-settings", Version: 1,
		Check: func(_ string, text json.RawMessage) error { return json.Unmarshal(text, &Settings{}) }}
}

// claimPattern matches valid UIDs of claims: a UID becomes a directory's name.
var claimPattern = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

// Run keeps daemons until ctx ends.
func (k Keeper) Run(ctx context.Context) error {
	if err := os.MkdirAll(k.MPS.Dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of MPS control daemons: %w", err)
	}
	unlock, err := lock(ctx, k.MPS.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	defer k.MPS.Close()
	listener, err := unixsocket.Listen(ctx, socketIn(k.MPS.Dir)) // only the holder of the lock does
	if err != nil {
		return fmt.Errorf("serve the node plugin: %w", err)
	}
	settings, unreadable, err := store.Open(store.Options{Directory: k.MPS.Dir, Extension: "/settings.json", Writer: k.Writer},
		settingsFormat())
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	for _, u := range unreadable {
		klog.FromContext(ctx).Error(nil, "A claim's MPS control daemon is not started before gpu-plugin starts again", "claimUID", u.Name,
			"reason", u.String())
	}
	if k.Metrics != nil {
		if err := k.Metrics.Register(settings); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	var resuming sync.WaitGroup
	defer resuming.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := requests{Keeper: k, settings: settings, last: map[types.UID]Moment{}}
	resuming.Go(func() { r.resume(ctx) })
	server := httpserver.Server{Handler: r.mux(), MaxBody: 1 << 20, WriteTimeout: -1} // a daemon may take as long as its caller waits
	klog.FromContext(ctx).Info("Keeping MPS control daemons", "socket", socketIn(k.MPS.Dir))
	if err := server.Serve(ctx, listener); err != nil {
		return fmt.Errorf("listen for the node plugin: %w", err)
	}
	return nil
}

// resume starts the daemons of an earlier run. A claim whose daemon cannot start must not delay the others.
func (r *requests) resume(ctx context.Context) {
	var claims sync.WaitGroup
	defer claims.Wait()
	for _, name := range r.settings.Names() {
		claims.Go(func() { r.resumeClaim(ctx, types.UID(name)) })
	}
}

// resumePause is the time between two attempts to start a daemon of an earlier run. There is no event for the cause of a failure, such as
// a missing driver.
const resumePause = 10 * time.Second

// resumeClaim starts the daemon of a claim with stored settings. It retries until the daemon runs or its claim is released.
func (r *requests) resumeClaim(ctx context.Context, claim types.UID) {
	log := klog.FromContext(ctx).WithValues("claimUID", claim)
	for {
		d, err := r.beginAgain(ctx, claim)
		if d == nil && err == nil {
			return // the claim was given back
		}
		if err == nil {
			err = r.MPS.settle(ctx, claim, d)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if errors.Is(err, errStopped) {
			continue // somebody changed its settings, or released the claim
		}
		log.Error(err, "MPS control daemon of an earlier run not started", "tryingAgainIn", resumePause)
		select {
		case <-time.After(resumePause):
		case <-ctx.Done():
			return
		}
	}
}

// beginAgain starts to keep a daemon of an earlier run running. It returns nil if its claim was released in between.
func (r *requests) beginAgain(ctx context.Context, claim types.UID) (*daemon, error) {
	unlock, err := r.locks.Lock(ctx, string(claim))
	if err != nil {
		return nil, err
	}
	defer unlock()
	text, kept := r.settings.Get(string(claim))
	if !kept {
		return nil, nil
	}
	var s Settings
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read the settings of an MPS control daemon: %w", err)
	}
	return r.MPS.begin(ctx, claim, s, true)
}

// lock takes the lock of a directory of daemons, which its keeper holds for its whole life.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(lockIn(dir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the MPS control daemons: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a descriptor is an int
		if err == nil {
			return func() { _ = f.Close() }, nil // closing it lets go of it
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			_ = f.Close() // it was only read
			return nil, fmt.Errorf("another keeper of MPS control daemons has %s: %w", lockIn(dir), err)
		}
	}
}
