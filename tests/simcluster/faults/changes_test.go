//go:build faults

package faults

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// changes reports changes of files to scenarios. All share one inotify instance, since a user has 128, and the plugins need
// some.
type changes struct {
	watcher *fsnotify.Watcher

	mu   sync.Mutex
	tell map[string]func() // by directory
}

func openChanges() (*changes, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the plugins' files: %w (this takes one of the user's inotify instances: see fs.inotify.max_user_instances)",
			err)
	}
	return &changes{watcher: watcher, tell: map[string]func(){}}, nil
}

// run reports changes until ctx is done.
func (c *changes) run(ctx context.Context) {
	defer c.watcher.Close() //nolint:errcheck // it only watched
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.watcher.Errors: // an overflow; later changes are reported
		case event := <-c.watcher.Events:
			c.mu.Lock()
			tell := c.tell[filepath.Dir(event.Name)]
			c.mu.Unlock()
			if tell != nil {
				tell()
			}
		}
	}
}

// of calls tell with each change in the directory or in one below it, one after another, until stop is called.
func (c *changes) of(root string, tell func()) (stop func(), err error) {
	var dirs []string
	stop = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, dir := range dirs {
			delete(c.tell, dir)
			_ = c.watcher.Remove(dir) // the directory may be gone
		}
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		dirs = append(dirs, path)
		c.tell[path] = tell
		return c.watcher.Add(path)
	})
	return stop, err
}
