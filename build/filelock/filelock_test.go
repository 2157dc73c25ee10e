package filelock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func TestLockHasOneOwnerAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, func() { t.Error("waits for a lock that nobody holds") })
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	waits := make(chan struct{})
	go func() {
		again, err := Lock(t.Context(), path, func() { close(waits) })
		if err == nil {
			again()
		}
		second <- err
	}()
	<-waits
	select {
	case err := <-second:
		t.Fatalf("a second holder (error: %v)", err)
	default:
	}
	unlock()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

func TestWaitingForALockEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path, func() {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}
