// Package observed holds values that one goroutine sets and others wait on.
package observed

import (
	"context"
	"sync"
)

// Value is a value whose changes can be waited for. The zero value holds T's zero value.
type Value[T any] struct {
	mu      sync.Mutex
	value   T
	changed chan struct{} // closed and replaced at each Set
}

// Set replaces the value and wakes all waiters.
func (v *Value[T]) Set(value T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.value = value
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// Get returns the value, and a channel that is closed when it is replaced.
func (v *Value[T]) Get() (T, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.value, v.changed
}

// Now returns the value.
func (v *Value[T]) Now() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value
}

// Await returns the first value that is good, now or later. When ctx ends first it returns the last value and false.
func (v *Value[T]) Await(ctx context.Context, good func(T) bool) (T, bool) {
	for {
		value, changed := v.Get()
		if good(value) {
			return value, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return value, false
		}
	}
}
