package simnode

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/operationexecutor"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/reconciler"
)

// registrationPeriod is how often the kubelet handles what its watcher saw.
const registrationPeriod = time.Second

// SocketWatcher does what the kubelet's plugin watcher does, for the registration directories of many nodes with a single
// inotify instance; a user has 128 of them on a common kernel. All further steps (asking the plugin who it is, registering it,
// trying again) are the kubelet's own code.
type SocketWatcher struct {
	events *fsnotify.Watcher

	mu      sync.Mutex
	desired map[string]cache.DesiredStateOfWorld // by registration directory
}

// NewSocketWatcher opens the inotify instance; Run reads it.
func NewSocketWatcher() (*SocketWatcher, error) {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch for plugin sockets: %w (this takes one of the user's inotify instances: see fs.inotify.max_user_instances)",
			err)
	}
	return &SocketWatcher{events: events, desired: map[string]cache.DesiredStateOfWorld{}}, nil
}

// Run forwards events until ctx is done, and then closes the watcher.
func (w *SocketWatcher) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	defer w.events.Close() //nolint:errcheck // nothing can be done about it
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-w.events.Errors:
			logger.Error(err, "Watching for plugin sockets")
		case event := <-w.events.Events:
			w.handle(ctx, event)
		}
	}
}

func (w *SocketWatcher) handle(ctx context.Context, event fsnotify.Event) {
	w.mu.Lock()
	desired := w.desired[filepath.Dir(event.Name)]
	w.mu.Unlock()
	switch {
	case desired == nil:
	case event.Has(fsnotify.Create):
		add(ctx, desired, event.Name)
	case event.Has(fsnotify.Remove):
		desired.RemovePlugin(event.Name)
	}
}

// serve registers the plugins whose sockets are in dir with the handlers, until ctx is done.
func (w *SocketWatcher) serve(ctx context.Context, dir string, handlers map[string]cache.PluginHandler) error {
	desired, actual := cache.NewDesiredStateOfWorld(), cache.NewActualStateOfWorld()
	loop := reconciler.NewReconciler(operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(nil)), registrationPeriod,
		desired, actual)
	for kind, handler := range handlers {
		loop.AddHandler(kind, handler)
	}
	w.mu.Lock()
	w.desired[dir] = desired
	w.mu.Unlock()
	if err := w.events.Add(dir); err != nil {
		return fmt.Errorf("watch %s for plugin sockets: %w", dir, err)
	}
	// After the watch, so that no socket is missed; one that is seen twice is added once.
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for plugin sockets: %w", err)
	}
	for _, entry := range entries {
		add(ctx, desired, filepath.Join(dir, entry.Name()))
	}
	loop.Run(ctx.Done())
	w.mu.Lock()
	delete(w.desired, dir)
	w.mu.Unlock()
	_ = w.events.Remove(dir) // the watcher may be closed already
	return nil
}

func add(ctx context.Context, desired cache.DesiredStateOfWorld, path string) {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeSocket == 0 || strings.HasPrefix(info.Name(), ".") {
		return // removed meanwhile, or not a socket
	}
	if err := desired.AddOrUpdatePlugin(ctx, path); err != nil {
		klog.FromContext(ctx).Error(err, "Adding a plugin socket", "path", path)
	}
}
