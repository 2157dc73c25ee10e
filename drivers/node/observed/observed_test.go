package observed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwaitReturnsTheFirstGoodValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var value Value[int]
		go func() {
			for i := range 5 {
				time.Sleep(time.Second)
				value.Set(i)
			}
		}()
		began := time.Now()
		if got, ok := value.Await(t.Context(), func(i int) bool { return i == 3 }); !ok || got != 3 || time.Since(began) != 4*time.Second {
			t.Errorf("got %d, %v after %s", got, ok, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got, ok := value.Await(ctx, func(int) bool { return false }); ok || got != 4 {
			t.Errorf("after the time-out: %d, %v", got, ok)
		}
	})
}
