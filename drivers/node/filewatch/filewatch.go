// Package filewatch notifies its users when directories change. All of them share one inotify instance, because a user of a node
// has few (fs.inotify.max_user_instances, 128 by default, counts those of all the user's processes, and every pod's root is the
// same user).
//
// Where no instance or no watch is available (fs.inotify.max_user_watches), Watcher scans the directory every Interval instead. Its
// users then detect changes later, but all of them.
package filewatch

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// DefaultInterval is how often directories without inotify are scanned.
const DefaultInterval = 2 * time.Second

// Watcher watches directories. Its zero value is ready to use. It opens an inotify instance with the first directory and closes it
// with the last. Any number of roles of a process may share one.
type Watcher struct {
	// Interval is how often directories without inotify are scanned, and how often watched directories are checked: a directory may be
	// replaced, or another one mounted over it. 0: DefaultInterval.
	Interval time.Duration

	mu      sync.Mutex
	all     map[*watch]struct{}
	watched map[int32]map[*watch]struct{} // by inotify's watch descriptor
	inotify *instance                     // nil: none is open
	refused bool                          // a missing instance was logged
	stop    context.CancelFunc            // ends the clock; nil: it does not run
}

// Entries returns a channel that holds a token when an entry of directory appeared, disappeared or was replaced since the last
// token was taken, until ctx ends. It reports any change after the call; one token may stand for several. names restricts it to
// entries of these names. The directory may be missing: its appearance is a change, and so is its removal. Watch a /dev with
// Entries only: every write to /dev/null is a change of contents.
func (w *Watcher) Entries(ctx context.Context, directory string, names ...string) <-chan struct{} {
	return w.add(ctx, &watch{directory: filepath.Clean(directory), names: names, events: entryEvents})
}

// Contents is like Entries, and also reports a file of the directory that was written and closed.
func (w *Watcher) Contents(ctx context.Context, directory string) <-chan struct{} {
	return w.add(ctx, &watch{directory: filepath.Clean(directory), events: entryEvents | unix.IN_CLOSE_WRITE})
}

// Modified is like Entries, and also reports a file of the directory that is modified. The kernel reports this for some of its own
// files, such as a cgroup's cgroup.events (cgroup-v2.rst, "[Un]populated Notification"). Without inotify these changes go
// unnoticed.
func (w *Watcher) Modified(ctx context.Context, directory string, names ...string) <-chan struct{} {
	return w.add(ctx, &watch{directory: filepath.Clean(directory), names: names, events: entryEvents | unix.IN_MODIFY})
}

func (w *Watcher) add(ctx context.Context, s *watch) <-chan struct{} {
	s.changed, s.log = make(chan struct{}, 1), klog.FromContext(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all, w.watched = map[*watch]struct{}{}, map[int32]map[*watch]struct{}{}
	}
	if w.stop == nil {
		clock, stop := context.WithCancel(context.WithoutCancel(ctx)) // later watches use it too
		w.stop = stop
		go w.tick(clock)
	}
	w.all[s] = struct{}{}
	if !w.attach(s) {
		s.seen = s.look()
	}
	context.AfterFunc(ctx, func() { w.remove(s) })
	return s.changed
}

func (w *Watcher) remove(s *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.detach(s)
	delete(w.all, s)
	if len(w.all) > 0 {
		return
	}
	w.stop()
	w.stop = nil
	if w.inotify != nil {
		w.inotify.close()
		w.inotify = nil
	}
}

// attach adds an inotify watch for the directory, and reports whether that worked.
func (w *Watcher) attach(s *watch) bool {
	if !w.open(s) {
		return false
	}
	identity, err := identify(s.directory)
	if err == nil {
		s.descriptor, err = w.inotify.add(s.directory, s.events)
	}
	s.missing = errors.Is(err, fs.ErrNotExist)
	if err != nil {
		if !s.refused && !s.missing {
			s.log.Error(err, "A directory cannot be watched; scanning it instead", "directory", s.directory, "every", w.interval().String())
			s.refused = true
		}
		return false
	}
	s.refused, s.attached, s.identity = false, true, identity
	if w.watched[s.descriptor] == nil {
		w.watched[s.descriptor] = map[*watch]struct{}{}
	}
	w.watched[s.descriptor][s] = struct{}{}
	return true
}

// open opens the inotify instance if it is not open.
func (w *Watcher) open(s *watch) bool {
	if w.inotify != nil {
		return true
	}
	opened, err := openInstance()
	if err != nil {
		if !w.refused {
			s.log.Error(err, "No inotify instance is available; scanning directories instead, so changes are detected later",
				"every", w.interval().String(), "remedy", "raise fs.inotify.max_user_instances on the node: it counts all processes of this user")
			w.refused = true
		}
		return false
	}
	if w.refused {
		s.log.Info("An inotify instance is available again; directories are watched")
		w.refused = false
	}
	w.inotify = opened
	go opened.read(func(e event) { w.deliver(opened, e) }, func(err error) { w.lost(opened, s, err) })
	return true
}

func (w *Watcher) detach(s *watch) {
	if !s.attached {
		return
	}
	s.attached = false
	delete(w.watched[s.descriptor], s)
	if len(w.watched[s.descriptor]) == 0 {
		delete(w.watched, s.descriptor)
		if w.inotify != nil {
			w.inotify.remove(s.descriptor)
		}
	}
}

// again attaches every directory that inotify can watch now, and notifies its user: changes in between are unknown.
func (w *Watcher) again(s *watch) {
	w.detach(s)
	if !w.attach(s) {
		s.seen = s.look()
	}
	s.notify()
}

// deliver passes on an event.
func (w *Watcher) deliver(from *instance, e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inotify != from {
		return
	}
	if e.mask&unix.IN_Q_OVERFLOW != 0 { // Events were lost, so notify every watch.
		for s := range w.all {
			s.notify()
		}
		return
	}
	appeared := ""
	for s := range w.watched[e.descriptor] {
		switch {
		case e.mask&directoryEvents != 0:
			w.again(s)
		case e.mask&s.events != 0 && s.matches(e.name):
			s.notify()
		}
		appeared = filepath.Join(s.directory, e.name)
	}
	if appeared == "" || e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) == 0 {
		return
	}
	for s := range w.all {
		if !s.attached && s.directory == appeared {
			w.again(s)
		}
	}
}

// lost is called when an instance can no longer be read; s's logger reports it. The clock opens another.
func (w *Watcher) lost(from *instance, s *watch, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inotify != from {
		return // it was closed
	}
	s.log.Error(err, "Could not read the inotify instance; opening another")
	from.close()
	w.inotify = nil
	clear(w.watched)
	for s := range w.all {
		s.attached = false
		s.notify()
	}
}

// tick scans directories until ctx ends.
func (w *Watcher) tick(ctx context.Context) {
	ticker := time.NewTicker(w.interval())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.lookAtAll(ctx)
		}
	}
}

func (w *Watcher) lookAtAll(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	refused := false // once in a round is enough
	for s := range w.all {
		switch {
		case s.attached:
			if identity, err := identify(s.directory); err != nil || identity != s.identity {
				w.again(s)
			}
		case !refused && w.attach(s):
			s.notify()
		default:
			refused = w.inotify == nil
			if now := s.look(); now != s.seen {
				s.seen = now
				s.notify()
			}
		}
	}
}

func (w *Watcher) interval() time.Duration {
	if w.Interval > 0 {
		return w.Interval
	}
	return DefaultInterval
}

var polled = prometheus.NewDesc("gpufabric_directories_polled",
	"Directories that are scanned every few seconds because inotify cannot watch them: changes are noticed later.", nil, nil)

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- polled }

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(collected chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := 0
	for s := range w.all {
		if !s.attached && !s.missing {
			count++
		}
	}
	collected <- prometheus.MustNewConstMetric(polled, prometheus.GaugeValue, float64(count))
}
