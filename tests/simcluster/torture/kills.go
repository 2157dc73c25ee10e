package torture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	resourceapi "k8s.io/api/resource/v1"
)

// mostSteps bounds how many steps a call may have.
const mostSteps = 64

// killer kills a plugin when it has made a number of changes to its files: a file that is made, renamed or removed is a step of a call,
// whatever the plugin does there.
type killer struct {
	events *fsnotify.Watcher
	mark   string
	killed chan bool
}

// killAt begins to count. It kills at change number step, from 1.
func (n *node) killAt(step int) (*killer, error) {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, kit("watch the plugin's files: %w", err)
	}
	k := &killer{events: events, mark: filepath.Join(n.path("state"), "kit"), killed: make(chan bool, 1)}
	for _, root := range n.stateDirs() {
		err = errors.Join(err, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				return events.Add(path)
			}
			return err
		}))
	}
	if err != nil {
		_ = events.Close() // unused
		return nil, kit("watch the plugin's files: %w", err)
	}
	plugin := n.plugin
	go func() { // ends with finish
		changes, killed := 0, false
		for event := range events.Events {
			if event.Name == k.mark {
				break
			}
			if !event.Has(fsnotify.Create) && !event.Has(fsnotify.Rename) && !event.Has(fsnotify.Remove) {
				continue
			}
			if changes++; changes == step {
				plugin.Kill()
				killed = true
			}
		}
		k.killed <- killed
	}()
	return k, nil
}

// finish ends the count after the call, and reports whether the plugin was killed. Events come in order, so the mark is the last.
func (k *killer) finish() (bool, error) {
	if err := os.WriteFile(k.mark, nil, 0o600); err != nil {
		return false, errors.Join(k.events.Close(), kit("end the count of changes: %w", err))
	}
	killed := <-k.killed
	if err := errors.Join(k.events.Close(), os.Remove(k.mark)); err != nil {
		return killed, kit("end the count of changes: %w", err)
	}
	return killed, nil
}

// killEach does call with a claim for each step that it has, kills the plugin at the step, starts it and calls after. The first call
// that ends before its step is the last one.
func (n *node) killEach(ctx context.Context, before, call, after func(context.Context, *resourceapi.ResourceClaim) error) (string, error) {
	for step := 1; step <= mostSteps; step++ {
		claim, err := n.claim(ctx, "", n.devices[0])
		if err != nil {
			return "", err
		}
		if err := before(ctx, claim); err != nil {
			return "", fmt.Errorf("before step %d: %w", step, err)
		}
		k, err := n.killAt(step)
		if err != nil {
			return "", err
		}
		callErr := call(ctx, claim)
		killed, err := k.finish()
		if err != nil {
			return "", err
		}
		if killed {
			if err := n.again(ctx); err != nil {
				return "", fmt.Errorf("killed at step %d: %w", step, err)
			}
		} else if callErr != nil {
			return "", fmt.Errorf("step %d, without a kill: %w", step, callErr)
		}
		if err := after(ctx, claim); err != nil {
			return "", fmt.Errorf("killed at step %d: %w", step, err)
		}
		if !killed {
			return fmt.Sprintf("killed at each of %d changes of its files; the claim went on and the next one had the device", step-1), nil
		}
	}
	return "", kit("a call made more than %d changes of files", mostSteps)
}

func nothing(context.Context, *resourceapi.ResourceClaim) error { return nil }

func killedInPrepare(ctx context.Context, n *node) (string, error) {
	if err := n.up(ctx); err != nil {
		return "", err
	}
	return n.killEach(ctx, nothing,
		func(ctx context.Context, claim *resourceapi.ResourceClaim) error {
			_, err := n.prepare(ctx, claim, callTimeout)
			return err
		},
		func(ctx context.Context, claim *resourceapi.ResourceClaim) error {
			if _, err := n.mustPrepare(ctx, claim); err != nil {
				return err
			}
			return n.mustUnprepare(ctx, claim)
		})
}

func killedInUnprepare(ctx context.Context, n *node) (string, error) {
	if err := n.up(ctx); err != nil {
		return "", err
	}
	return n.killEach(ctx,
		func(ctx context.Context, claim *resourceapi.ResourceClaim) error {
			_, err := n.mustPrepare(ctx, claim)
			return err
		},
		func(ctx context.Context, claim *resourceapi.ResourceClaim) error {
			return n.unprepare(ctx, claim, callTimeout)
		},
		n.mustUnprepare)
}
