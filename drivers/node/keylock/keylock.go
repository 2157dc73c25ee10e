// Package keylock provides locks by name, so that work on one device or claim never waits for work on another.
package keylock

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Locks is a set of locks by name. The zero value is ready to use.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	token   chan struct{} // holds one token while the lock is free
	waiters int
}

// Lock takes the locks of all keys and returns a function that releases them. It takes them in sorted order, so that two callers
// cannot wait for each other. When ctx ends it gives up, with an error that names the key it waited for.
func (l *Locks) Lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	for i, key := range keys {
		if err := l.take(ctx, key); err != nil {
			l.release(keys[:i])
			return nil, err
		}
	}
	return sync.OnceFunc(func() { l.release(keys) }), nil
}

func (l *Locks) take(ctx context.Context, key string) error {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	k := l.held[key]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		l.held[key] = k
	}
	k.waiters++
	l.mu.Unlock()
	select {
	case <-k.token:
		return nil
	case <-ctx.Done():
		l.leave(key, k)
		return fmt.Errorf("wait for other work on %s: %w", key, context.Cause(ctx))
	}
}

func (l *Locks) release(keys []string) {
	for _, key := range slices.Backward(keys) {
		l.mu.Lock()
		k := l.held[key]
		l.mu.Unlock()
		k.token <- struct{}{}
		l.leave(key, k)
	}
}

// leave removes a lock without a holder or waiter, so that the set does not grow with every claim ever seen.
func (l *Locks) leave(key string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.waiters--
	if k.waiters == 0 {
		delete(l.held, key)
	}
}
