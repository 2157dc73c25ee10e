package sysfile

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// maxWorkers bounds the goroutines of Each. Reading sysfs is kernel work on this CPU, not waiting, so more goroutines would only
// contend.
const maxWorkers = 8

// Each calls visit(dir, i) for every i in [0, n), from at most maxWorkers goroutines. Each goroutine has its own Dir, which is not
// open yet. Each returns when all calls have returned, or early with ctx's error.
func Each(ctx context.Context, n int, visit func(dir *Dir, i int)) error {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxWorkers, n) {
		group.Go(func() {
			dir := closed()
			defer dir.Close()
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				visit(dir, i)
			}
		})
	}
	group.Wait()
	return ctx.Err()
}
