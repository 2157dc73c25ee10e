package httpserver

import (
	"net"
	"time"
)

// Each unknown token costs a request to the API server, by a client that may make 50 requests a second. A scraper shows a new token once an
// hour.
const (
	// TokensAtOnce is how many unknown tokens one address can show at once; reviewsPerAddress are the further ones, a second.
	TokensAtOnce      = 10
	reviewsPerAddress = 0.5
	ofAll, burstOfAll = 5, 50 // the same for all addresses
	// mostAddresses limits the addresses that are stored.
	mostAddresses = 1024
)

// TokenReviews limits the requests to the API server for tokens that were not accepted before, in all and for one address. It is not safe
// for concurrent use.
type TokenReviews struct {
	all    bucket
	byHost map[string]*bucket
}

// Allow reports whether another request may be made for an address (host:port), and counts it.
func (q *TokenReviews) Allow(address string, now time.Time) bool {
	host := hostOf(address)
	if q.byHost == nil || len(q.byHost) >= mostAddresses {
		q.byHost = map[string]*bucket{}
	}
	own := q.byHost[host]
	if own == nil {
		own = &bucket{}
		q.byHost[host] = own
	}
	return own.take(now, reviewsPerAddress, TokensAtOnce) && q.all.take(now, ofAll, burstOfAll)
}

// hostOf is the address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
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
