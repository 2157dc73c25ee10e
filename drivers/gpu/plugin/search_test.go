package plugin

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"gpufabric.io/drivers/gpu/edits"
)

// When a claim comes during a search, the search may already have seen a file that is gone now.
func TestSearchChecksResultThatBeganBeforeClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks []chan error
		var mu sync.Mutex
		begun := func() int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return len(looks)
		}
		var running sync.WaitGroup
		s := newSearch(&running, func() (*edits.Set, error) {
			mu.Lock()
			end := make(chan error)
			looks = append(looks, end)
			mu.Unlock()
			return nil, <-end
		})
		defer running.Wait()
		if n := begun(); n != 1 {
			t.Fatalf("%d looks", n)
		}
		answers := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := s.get(t.Context())
				answers <- err
			}()
		}
		if n := begun(); n != 1 {
			t.Fatalf("%d looks while the first is under way", n)
		}
		looks[0] <- errors.New("what it found does not stand")
		if n := begun(); n != 2 || len(answers) != 0 {
			t.Fatalf("%d looks and %d answers after one that does not stand; want 2 and 0", n, len(answers))
		}
		want := errors.New("what stands now")
		looks[1] <- want
		for range 2 {
			if err := <-answers; !errors.Is(err, want) {
				t.Errorf("a claim got %v", err)
			}
		}
		if n := begun(); n != 2 {
			t.Errorf("%d looks for two claims that came together", n)
		}
	})
}
