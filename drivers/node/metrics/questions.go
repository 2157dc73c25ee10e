package metrics

import (
	"net"
	"time"
)

// Each unknown token costs a request to the API server, by the client with which the role reads claims; that client may make 50
// requests a second. A scraper shows a new token once an hour.
const (
	perAddress, burstOfAddress = 0.5, 10 // a second, and at once
	ofAll, burstOfAll          = 5, 50
	// mostAddresses bounds the addresses that are remembered.
	mostAddresses = 1024
)

// questions are the requests to the API server for unknown tokens.
type questions struct {
	all    bucket
	byHost map[string]*bucket
}

// may says whether another request may be made for an address (host:port), and counts it.
func (q *questions) may(address string, now time.Time) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if q.byHost == nil || len(q.byHost) >= mostAddresses {
		q.byHost = map[string]*bucket{}
	}
	own := q.byHost[host]
	if own == nil {
		own = &bucket{}
		q.byHost[host] = own
	}
	return own.take(now, perAddress, burstOfAddress) && q.all.take(now, ofAll, burstOfAll)
}

// bucket holds a number of requests and refills over time. The zero value is full.
type bucket struct {
	used float64
	at   time.Time
}

func (b *bucket) take(now time.Time, perSecond, burst float64) bool {
	if !b.at.IsZero() {
		b.used = max(0, b.used-now.Sub(b.at).Seconds()*perSecond)
	}
	b.at = now
	if b.used+1 > burst {
		return false
	}
	b.used++
	return true
}
