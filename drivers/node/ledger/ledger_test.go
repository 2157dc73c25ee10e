package ledger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func owner(name string) Owner { return Owner{ID: name, Name: "claim " + name} }

func TestHoldsExcludeEachOtherUnlessBothAreShared(t *testing.T) {
	for name, c := range map[string]struct {
		first, second Reservation
		allowed       bool
	}{
		"exclusive and exclusive": {Reservation{Key: "g"}, Reservation{Key: "g"}, false},
		"exclusive and shared":    {Reservation{Key: "g"}, Reservation{Key: "g", Shared: true}, false},
		"shared and exclusive":    {Reservation{Key: "g", Shared: true}, Reservation{Key: "g"}, false},
		"shared and shared":       {Reservation{Key: "g", Shared: true}, Reservation{Key: "g", Shared: true}, true},
		"different devices":       {Reservation{Key: "g"}, Reservation{Key: "h"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var ledger Ledger
			if err := ledger.TryAcquire(owner("a"), c.first); err != nil {
				t.Fatal(err)
			}
			err := ledger.TryAcquire(owner("b"), Reservation{Key: "other"}, c.second)
			var conflict *ConflictError
			if (err == nil) != c.allowed || !c.allowed && (!errors.As(err, &conflict) || !strings.Contains(err.Error(), "claim a")) {
				t.Errorf("error %v, allowed %v", err, c.allowed)
			}
			if !c.allowed && len(ledger.Holders("other")) != 0 {
				t.Error("the part that was free was taken")
			}
			if err := ledger.TryAcquire(owner("a"), c.first); err != nil {
				t.Errorf("its holder may not hold it again: %v", err)
			}
		})
	}
}

func TestExtendAddsHoldsToHolderByName(t *testing.T) {
	var ledger Ledger
	for _, hold := range []struct {
		owner string
		Reservation
	}{{"a", Reservation{Key: "name", Shared: true}}, {"b", Reservation{Key: "name", Shared: true}}, {"c", Reservation{Key: "part 2"}}} {
		if err := ledger.TryAcquire(owner(hold.owner), hold.Reservation); err != nil {
			t.Fatal(err)
		}
	}
	if err := ledger.Extend("unknown", Reservation{Key: "free"}); err != nil || len(ledger.Holders("free")) != 0 {
		t.Errorf("held by nobody: %v, %v", ledger.Holders("free"), err)
	}
	if err := ledger.Extend("name", Reservation{Key: "part 1", Shared: true}); err != nil {
		t.Error(err)
	}
	if holders := ledger.Holders("part 1"); len(holders) != 2 {
		t.Errorf("part 1 is held by %v, want a and b", holders)
	}
	if err := ledger.TryAcquire(owner("d"), Reservation{Key: "part 1"}); err == nil {
		t.Error("what a and b hold was given to d")
	}
	if err := ledger.TryAcquire(owner("d"), Reservation{Key: "part 1", Shared: true}); err != nil {
		t.Error(err)
	}
	if err := ledger.Extend("name", Reservation{Key: "part 2", Shared: true}); err == nil ||
		!strings.Contains(err.Error(), "claim a has name: part 2 is held by claim c") {
		t.Errorf("two hold part 2: %v", err)
	}
	for _, id := range []string{"a", "b", "d"} {
		ledger.Release(id)
	}
	if holders := ledger.Holders("part 1"); len(holders) != 0 {
		t.Errorf("after the release part 1 is held by %v", holders)
	}
}

func TestAcquireReturnsWhenHolderReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ledger Ledger
		if err := ledger.Acquire(t.Context(), owner("a"), Reservation{Key: "g"}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { ledger.Release("a") })
		began := time.Now()
		if err := ledger.Acquire(t.Context(), owner("b"), Reservation{Key: "g"}); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := ledger.Acquire(ctx, owner("c"), Reservation{Key: "g"}); err == nil || !strings.Contains(err.Error(), "claim b") {
			t.Errorf("error %v", err)
		}
	})
}

func TestTryAcquireTakesNoneOnConflict(t *testing.T) {
	var ledger Ledger
	for _, held := range []struct {
		owner string
		hold  Reservation
	}{{"b", Reservation{Key: "g1", Shared: true}}, {"a", Reservation{Key: "g1", Shared: true}}, {"c", Reservation{Key: "g2"}}, {"a",
		Reservation{Key: "g3"}}} {
		if err := ledger.TryAcquire(owner(held.owner), held.hold); err != nil {
			t.Fatal(err)
		}
	}
	err := ledger.TryAcquire(owner("d"), Reservation{Key: "free"}, Reservation{Key: "g3"}, Reservation{Key: "g1"}, Reservation{Key: "g2",
		Shared: true})
	var conflict *ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("four devices, of which three are held: %v", err)
	}
	want := []Conflict{{"g3", owner("a")}, {"g1", owner("a")}, {"g1", owner("b")}, {"g2", owner("c")}}
	if !slices.Equal(conflict.Conflicts, want) || !slices.Equal(conflict.Holders(), []Owner{owner("a"), owner("b"), owner("c")}) {
		t.Errorf("conflicts %v, holders %v", conflict.Conflicts, conflict.Holders())
	}
	if err.Error() != "g3 is held by claim a" {
		t.Errorf("the error reads %q", err)
	}
	for _, key := range []string{"free", "g1", "g2", "g3"} {
		if slices.Contains(ledger.Holders(key), owner("d")) {
			t.Errorf("a try that failed holds %s", key)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		ledger.Release(id)
	}
	if err := ledger.TryAcquire(owner("d"), Reservation{Key: "g1"}, Reservation{Key: "g2"}, Reservation{Key: "g3"}); err != nil {
		t.Errorf("after all releases: %v", err)
	}
}

// Two owners that want the same two devices in opposite orders must never wait for each other with one device each.
func TestAcquireTakesAllOrNone(t *testing.T) {
	var ledger Ledger
	var both sync.WaitGroup
	for name, keys := range map[string][]Reservation{"a": {{Key: "g1"}, {Key: "g2"}}, "b": {{Key: "g2"}, {Key: "g1"}}} {
		both.Go(func() {
			for range 1000 {
				if err := ledger.Acquire(t.Context(), owner(name), keys...); err != nil {
					t.Error(err)
					return
				}
				if first, second := ledger.Holders("g1"), ledger.Holders("g2"); !slices.Equal(first, second) || len(first) != 1 {
					t.Errorf("%s holds both devices, but they are held by %v and %v", name, first, second)
				}
				ledger.Release(name)
			}
		})
	}
	both.Wait()
}
