package plugin

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/gputest"
)

// BenchmarkPrepare measures NodePrepareResources as the kubelet sees it, over the socket and with every fsync, for one claim and
// for eight at once. The API server is in this process, so its answers cost little.
func BenchmarkPrepare(b *testing.B) {
	for _, parallel := range []int{1, 8} {
		b.Run(fmt.Sprintf("claims-%d", parallel), func(b *testing.B) {
			plugin := newBench(b, gputest.New(b, 8))
			plugin.slices()
			var prepare, unprepare []time.Duration
			for round := 0; b.Loop(); round++ {
				var claims []*resourceapi.ResourceClaim
				for i := range parallel {
					claims = append(claims, plugin.claim(fmt.Sprintf("u%d-%d", round, i), nil, device{name: fmt.Sprintf("gpu-%d", i)}))
				}
				prepare = append(prepare, each(claims, func(c *resourceapi.ResourceClaim) { plugin.mustPrepare(c) })...)
				unprepare = append(unprepare, each(claims, func(c *resourceapi.ResourceClaim) { plugin.unprepare(c) })...)
			}
			percentiles(b, "prepare", prepare)
			percentiles(b, "unprepare", unprepare)
		})
	}
}

// each runs something for every claim at once and returns how long each took.
func each(claims []*resourceapi.ResourceClaim, do func(*resourceapi.ResourceClaim)) []time.Duration {
	took := make([]time.Duration, len(claims))
	var wg sync.WaitGroup
	for i, c := range claims {
		wg.Go(func() {
			start := time.Now()
			do(c)
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	return took
}

func percentiles(b *testing.B, name string, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[(len(took)-1)*p/100].Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", name, p))
	}
}
