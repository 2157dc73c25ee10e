package sharing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
)

// lockPause is the time between two tries to take a lock that another process has.
const lockPause = 300 * time.Millisecond

// Keeper is the parent of a node's MPS control daemons, in a process of its own: they live on while the node plugin restarts and is upgraded. The node plugin
// asks for them over a Unix socket; whoever can open it is root on the node.
//
// It keeps on disk what it was asked for, and starts that again when it was itself killed, with which the daemons end.
type Keeper struct {
	MPS    *MPS
	Writer atomicfile.Writer
}

// What lies in the directory of all claims, which no container has mounted.
func socketIn(dir string) string { return filepath.Join(dir, "keeper.sock") }
func lockIn(dir string) string   { return filepath.Join(dir, "keeper.lock") }

// settingsFile is a claim's settings as the keeper was given them.
const settingsFile = "settings.json"

// claimPattern is what a claim's UID may be: it becomes a directory's name.
var claimPattern = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

// Run keeps daemons until ctx ends.
func (k Keeper) Run(ctx context.Context) error {
	if err := os.MkdirAll(k.MPS.Dir, 0o755); err != nil {
		return fmt.Errorf("directory of MPS control daemons: %w", err)
	}
	unlock, err := lock(ctx, k.MPS.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	defer k.MPS.Close()
	// Nobody else listens, who has not the lock.
	if err := os.Remove(socketIn(k.MPS.Dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("socket of an earlier run: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socketIn(k.MPS.Dir))
	if err != nil {
		return fmt.Errorf("listening for the node plugin: %w", err)
	}
	if err := os.Chmod(socketIn(k.MPS.Dir), 0o600); err != nil {
		return errors.Join(fmt.Errorf("closing the socket to others: %w", err), listener.Close())
	}
	var resuming sync.WaitGroup
	defer resuming.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resuming.Go(func() { k.resume(ctx) })
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /claims/{claim}", k.put)
	mux.HandleFunc("DELETE /claims/{claim}", k.delete)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	klog.FromContext(ctx).Info("Keeping MPS control daemons", "socket", socketIn(k.MPS.Dir))
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("listening for the node plugin: %w", err)
	}
	return nil
}

// resume starts what an earlier run was asked for.
func (k Keeper) resume(ctx context.Context) {
	log := klog.FromContext(ctx)
	files, err := filepath.Glob(filepath.Join(k.MPS.Dir, "*", settingsFile))
	if err != nil {
		log.Error(err, "Claims of an earlier run not found")
	}
	// A claim whose daemon cannot start keeps no other from its own.
	var claims sync.WaitGroup
	defer claims.Wait()
	for _, file := range files {
		claims.Go(func() { k.resumeClaim(ctx, file) })
	}
}

// resumePause lies between two attempts to start a daemon of an earlier run: nothing tells when what it lacks, such as the driver, is there.
const resumePause = 10 * time.Second

// resumeClaim starts the daemon that a file of settings stands for, again and again until it runs or nobody wants it any more.
func (k Keeper) resumeClaim(ctx context.Context, file string) {
	log := klog.FromContext(ctx).WithValues("file", file)
	for {
		var s Settings
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return // the claim was given back
		}
		if err == nil {
			err = json.Unmarshal(text, &s)
		}
		if err == nil {
			err = k.MPS.Resume(ctx, types.UID(filepath.Base(filepath.Dir(file))), s)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		log.Error(err, "MPS control daemon of an earlier run not started", "tryingAgainIn", resumePause)
		select {
		case <-time.After(resumePause):
		case <-ctx.Done():
			return
		}
	}
}

func (k Keeper) put(w http.ResponseWriter, r *http.Request) {
	claim := r.PathValue("claim")
	var s Settings
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || !claimPattern.MatchString(claim) {
		http.Error(w, fmt.Sprintf("claim %q: settings that cannot be read: %v", claim, err), http.StatusBadRequest)
		return
	}
	directory := k.MPS.directory(types.UID(claim))
	err = os.MkdirAll(filepath.Dir(directory.path(settingsFile)), 0o755)
	if err == nil {
		err = k.Writer.Write(directory.path(settingsFile), text, 0o600)
	}
	if err == nil {
		start := k.MPS.Start
		if r.URL.Query().Has("resume") {
			start = k.MPS.Resume
		}
		err = start(r.Context(), types.UID(claim), s)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (k Keeper) delete(w http.ResponseWriter, r *http.Request) {
	claim := r.PathValue("claim")
	if !claimPattern.MatchString(claim) {
		http.Error(w, fmt.Sprintf("%q is no claim's UID", claim), http.StatusBadRequest)
		return
	}
	if err := k.MPS.Stop(r.Context(), types.UID(claim)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// lock takes the lock of a directory of daemons, which its keeper has as long as it lives.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(lockIn(dir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of MPS control daemons: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a descriptor is an int
		if err == nil {
			return func() { _ = f.Close() }, nil // closing it lets go of it
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			_ = f.Close() // nothing was written
			return nil, fmt.Errorf("another keeper of MPS control daemons has %s: %w", lockIn(dir), err)
		}
	}
}
