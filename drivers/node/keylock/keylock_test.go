package keylock

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkOnOneKeyWaitsAndOnAnotherDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks Locks
		unlock, err := locks.Lock(t.Context(), "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, unlock)
		began := time.Now()
		other, err := locks.Lock(t.Context(), "c")
		if err != nil || time.Since(began) != 0 {
			t.Errorf("another key: %v after %s", err, time.Since(began))
		}
		other()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := locks.Lock(short, "b"); err == nil || !strings.Contains(err.Error(), "b") {
			t.Errorf("error %v", err)
		}
		same, err := locks.Lock(t.Context(), "b")
		if err != nil || time.Since(began) != time.Second {
			t.Errorf("the same key: %v after %s", err, time.Since(began))
		}
		same()
		synctest.Wait() // the other holder releases its locks one by one, and may not have finished
		if len(locks.held) != 0 {
			t.Errorf("%d locks are remembered", len(locks.held))
		}
	})
}

func TestLedgerDoesNotDeadlockForKeysInAnyOrder(t *testing.T) {
	var locks Locks
	counters := map[string]*int{"a": new(int), "b": new(int), "c": new(int)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				keys := []string{"a", "b", "c", "a"}
				rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				unlock, err := locks.Lock(t.Context(), keys...)
				if err != nil {
					t.Error(err)
					return
				}
				for _, counter := range counters {
					*counter++ // the race detector watches this
				}
				unlock()
				unlock() // twice is once
			}
		})
	}
	wg.Wait()
	for key, counter := range counters {
		if *counter != 8*500 {
			t.Errorf("%s: %d", key, *counter)
		}
	}
}
