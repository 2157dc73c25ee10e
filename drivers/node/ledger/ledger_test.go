package ledger

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func owner(name string) Owner { return Owner{ID: name, Name: "claim " + name} }

func now(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestHoldsExcludeEachOtherUnlessBothAreShared(t *testing.T) {
	for name, c := range map[string]struct {
		first, second Hold
		allowed       bool
	}{
		"exclusive and exclusive": {Hold{Key: "g"}, Hold{Key: "g"}, false},
		"exclusive and shared":    {Hold{Key: "g"}, Hold{Key: "g", Shared: true}, false},
		"shared and exclusive":    {Hold{Key: "g", Shared: true}, Hold{Key: "g"}, false},
		"shared and shared":       {Hold{Key: "g", Shared: true}, Hold{Key: "g", Shared: true}, true},
		"different devices":       {Hold{Key: "g"}, Hold{Key: "h"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var ledger Ledger
			if err := ledger.Acquire(now(t), owner("a"), c.first); err != nil {
				t.Fatal(err)
			}
			err := ledger.Acquire(now(t), owner("b"), Hold{Key: "other"}, c.second)
			var conflict *ConflictError
			if (err == nil) != c.allowed || !c.allowed && (!errors.As(err, &conflict) || !strings.Contains(err.Error(), "claim a")) {
				t.Errorf("error %v, allowed %v", err, c.allowed)
			}
			if !c.allowed && len(ledger.Holders("other")) != 0 {
				t.Error("the part that was free was taken")
			}
			if err := ledger.Acquire(now(t), owner("a"), c.first); err != nil {
				t.Errorf("its holder may not hold it again: %v", err)
			}
		})
	}
}

func TestWhoHoldsSomethingByNameHoldsWhatItTurnsOutToBe(t *testing.T) {
	var ledger Ledger
	for _, hold := range []struct {
		owner string
		Hold
	}{{"a", Hold{Key: "name", Shared: true}}, {"b", Hold{Key: "name", Shared: true}}, {"c", Hold{Key: "part 2"}}} {
		if err := ledger.Acquire(now(t), owner(hold.owner), hold.Hold); err != nil {
			t.Fatal(err)
		}
	}
	if err := ledger.Extend("unknown", Hold{Key: "free"}); err != nil || len(ledger.Holders("free")) != 0 {
		t.Errorf("held by nobody: %v, %v", ledger.Holders("free"), err)
	}
	if err := ledger.Extend("name", Hold{Key: "part 1", Shared: true}); err != nil {
		t.Error(err)
	}
	if holders := ledger.Holders("part 1"); len(holders) != 2 {
		t.Errorf("part 1 is held by %v, want a and b", holders)
	}
	if err := ledger.Acquire(now(t), owner("d"), Hold{Key: "part 1"}); err == nil {
		t.Error("what a and b hold was given to d")
	}
	if err := ledger.Acquire(now(t), owner("d"), Hold{Key: "part 1", Shared: true}); err != nil {
		t.Error(err)
	}
	if err := ledger.Extend("name", Hold{Key: "part 2", Shared: true}); err == nil ||
		!strings.Contains(err.Error(), "claim a holds name: part 2 is held by claim c") {
		t.Errorf("two hold part 2: %v", err)
	}
	for _, id := range []string{"a", "b", "d"} {
		ledger.Release(id)
	}
	if holders := ledger.Holders("part 1"); len(holders) != 0 {
		t.Errorf("after the release part 1 is held by %v", holders)
	}
}

func TestAWaiterGetsTheDeviceWhenItIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ledger Ledger
		if err := ledger.Acquire(t.Context(), owner("a"), Hold{Key: "g"}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { ledger.Release("a") })
		began := time.Now()
		if err := ledger.Acquire(t.Context(), owner("b"), Hold{Key: "g"}); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := ledger.Acquire(ctx, owner("c"), Hold{Key: "g"}); err == nil || !strings.Contains(err.Error(), "claim b") {
			t.Errorf("error %v", err)
		}
	})
}
