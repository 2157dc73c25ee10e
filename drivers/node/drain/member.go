package drain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/observed"
)

// Member is a role that opens NVML on a node whose GPUs may be drained.
type Member struct {
	Directory

	Role string
}

// Session is one use of NVML by a member.
type Session struct {
	wanted observed.Value[bool]

	mu   sync.Mutex
	file *os.File // nil: the role does not take part
	// recorded is the present text of file.
	recorded string
}

// Run calls use whenever NVML may be open, until ctx ends or use fails. use returns ErrDrained once it has closed NVML for a drain.
// Run calls it again when the drain is over. Where the directory cannot be used, the role still runs: Run logs the error, and the
// role does not take part in drains.
func (m Member) Run(ctx context.Context, use func(context.Context, *Session) error) error {
	if m.Path == "" {
		return use(ctx, &Session{})
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := m.Changes(watching)
	var file *os.File
	if err == nil {
		file, err = m.join()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "This role keeps NVML open when the node's GPUs are drained")
		return use(ctx, &Session{})
	}
	defer func() { _ = file.Close() }()
	for logged := false; ; {
		if m.mayUse(ctx, file) {
			logged = false
			if err := m.use(ctx, file, changes, use); !errors.Is(err, ErrDrained) {
				return err
			}
			continue // the phase may have changed by now
		}
		if !logged {
			klog.FromContext(ctx).Info("The node's GPUs are drained: NVML stays closed " + m.Until())
			logged = true
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return nil
		}
	}
}

// join opens the member's file, and holds its lock for as long as the file is open. During a rollout two processes of a role may be
// members.
func (m Member) join() (*os.File, error) {
	path := m.file(m.Role + memberSuffix)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // the drain command reads it as any user
	if err != nil {
		return nil, fmt.Errorf("take part in drains of the node's GPUs: %w", err)
	}
	if err := flock(file, unix.LOCK_SH); err != nil { // a reader of the file locks it for a moment
		return nil, errors.Join(fmt.Errorf("take part in drains of the node's GPUs: lock %s: %w", path, err), file.Close())
	}
	return file, nil
}

// mayUse reports whether NVML may be opened. While a drain waits, a role that ended without closing NVML opens it again, so that it
// can report the pods that still run.
func (m Member) mayUse(ctx context.Context, file *os.File) bool {
	phase, err := m.Phase()
	if err != nil {
		klog.FromContext(ctx).Error(err, "NVML stays closed")
	}
	text, statErr := file.Stat()
	return phase == None || phase == Draining && statErr == nil && text.Size() > 0
}

// use runs one use with a session that follows the phase.
func (m Member) use(ctx context.Context, file *os.File, changes <-chan struct{}, use func(context.Context, *Session) error) error {
	s := &Session{file: file}
	s.Record(ctx, "NVML is open")
	follow := func() {
		phase, _ := m.Phase() // an unreadable phase counts as drained, and mayUse logs it
		if wanted := phase != None; wanted != s.wanted.Now() {
			s.wanted.Set(wanted)
		}
	}
	follow()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-changes:
				follow()
			case <-ctx.Done():
				return
			}
		}
	})
	err := use(ctx, s)
	cancel()
	wg.Wait()
	if errors.Is(err, ErrDrained) {
		s.Record(context.WithoutCancel(ctx), "")
	}
	return err
}

// Record writes the reason why the role has not closed NVML to its member file; empty: it has.
func (s *Session) Record(ctx context.Context, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || s.recorded == why && why != "" {
		return
	}
	s.recorded = why
	text := []byte(why)
	text = text[:min(len(text), 1000)] // readers read no more than this
	_, err := s.file.WriteAt(text, 0)
	err = errors.Join(err, s.file.Truncate(int64(len(text))))
	if err != nil {
		klog.FromContext(ctx).Error(err, "gpufabric drain does not get the reason of this role's wait")
	}
	// The watcher reports a file that is closed. This file stays open for its lock, so open and close it once more.
	if again, err := os.OpenFile(s.file.Name(), os.O_WRONLY, 0); err == nil {
		_ = again.Close()
	}
}

// Wanted reports whether the role should close NVML, and returns a channel that is closed when that changes.
func (s *Session) Wanted() (bool, <-chan struct{}) { return s.wanted.Get() }

// Await waits until the role should close NVML, or no longer should. It returns false when ctx ended first.
func (s *Session) Await(ctx context.Context, wanted bool) bool {
	_, ok := s.wanted.Await(ctx, func(now bool) bool { return now == wanted })
	return ok
}

// Interrupted is a context that ends with ErrDrained when the role should close NVML. It is for work that has nothing to finish
// first.
func (s *Session) Interrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if s.Await(ctx, true) {
			cancel(ErrDrained)
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}
