package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gpufabric.io/drivers/node/filewatch"
)

const (
	// rereadInterval is how often the file is read without an event: on a network file system another node's writes cause none.
	rereadInterval = 10 * time.Second
	// quiet is how long to wait after an event for related ones: an editor's, or those of a ConfigMap's new directory.
	quiet = 50 * time.Millisecond
)

// Watch calls changed with the content of the file at path, now and whenever it changes, until ctx ends. The argument is a Config;
// or a mistake's Error with the part that can be served; or an error that wraps os.ErrNotExist. files watches the file's directory,
// because a ConfigMap volume changes through a link in it.
func Watch(ctx context.Context, files *filewatch.Watcher, path string, changed func(*Config, error)) {
	events := files.Contents(ctx, filepath.Dir(path))
	f := &file{path: path, changed: changed}
	tick := time.NewTicker(rereadInterval)
	defer tick.Stop()
	for {
		f.read()
		select {
		case <-ctx.Done():
			return
		case <-events:
			drain(ctx, events)
		case <-tick.C:
		}
	}
}

// drain waits until no event has come for a moment.
func drain(ctx context.Context, events <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-time.After(quiet):
			return
		}
	}
}

// file is the file's content as last reported.
type file struct {
	path     string
	changed  func(*Config, error)
	reported bool
	content  []byte
	err      string // of reading it
}

func (f *file) read() {
	content, err := os.ReadFile(f.path)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if f.reported && bytes.Equal(content, f.content) && text == f.err {
		return
	}
	f.reported, f.content, f.err = true, content, text
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
