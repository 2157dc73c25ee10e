package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// rereadInterval is how often the file is read without an event: a net for a directory that was not there at the start.
	rereadInterval = 10 * time.Second
	// quiet is how long to wait after an event for the ones that belong to it: an editor's, or those of a ConfigMap's new directory.
	quiet = 50 * time.Millisecond
)

// Watch calls changed with the content of the file at path, now and whenever it changes, until ctx ends: with a Config, with a mistake's Error,
// or with an error that wraps os.ErrNotExist. A ConfigMap volume changes by a link in the file's directory, so the directory is watched.
func Watch(ctx context.Context, path string, changed func(*Config, error)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer func() { _ = watcher.Close() }()
	f := &file{path: path, changed: changed}
	tick := time.NewTicker(rereadInterval)
	defer tick.Stop()
	for {
		// Adding what is watched already does nothing; adding what is not there fails until it is.
		_ = watcher.Add(filepath.Dir(path))
		f.read()
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
			drain(ctx, watcher)
		case <-watcher.Errors:
		case <-tick.C:
		}
	}
}

// drain waits until no event has come for a moment.
func drain(ctx context.Context, watcher *fsnotify.Watcher) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
		case <-time.After(quiet):
			return
		}
	}
}

// file is the file's content as it was last told.
type file struct {
	path    string
	changed func(*Config, error)
	told    bool
	content []byte
	err     string // of reading it
}

func (f *file) read() {
	content, err := os.ReadFile(f.path)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if f.told && bytes.Equal(content, f.content) && text == f.err {
		return
	}
	f.told, f.content, f.err = true, content, text
	if err != nil {
		f.changed(nil, fmt.Errorf("configuration: %w", err))
		return
	}
	config, err := Parse(content)
	var problems Error
	if errors.As(err, &problems) {
		err = fmt.Errorf("mistakes in %s: %d\n%w", f.path, len(problems), err)
	}
	f.changed(config, err)
}
