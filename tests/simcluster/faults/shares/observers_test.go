//go:build faults

package shares

import (
	"sync"

	"gpufabric.io/tests/simcluster/apiproxy"
)

// observers share the proxy's one tap between scenarios.
type observers struct {
	mu   sync.Mutex
	next int
	of   map[int]apiproxy.Tap
}

// attach passes every write to the observers until detach is called.
func (o *observers) attach(proxy *apiproxy.Proxy) (detach func()) {
	return proxy.Tap(apiproxy.Tap{
		Before: func(w apiproxy.Write) bool {
			return o.see(w, func(t apiproxy.Tap) func(apiproxy.Write) bool { return t.Before })
		},
		After: func(w apiproxy.Write) bool {
			return o.see(w, func(t apiproxy.Tap) func(apiproxy.Write) bool { return t.After })
		},
	})
}

// add adds an observer until remove is called.
func (o *observers) add(tap apiproxy.Tap) (remove func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = map[int]apiproxy.Tap{}
	}
	id := o.next
	o.next++
	o.of[id] = tap
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.of, id)
	}
}

// see shows a write to all observers. The connection is cut if any of them wants that.
func (o *observers) see(w apiproxy.Write, side func(apiproxy.Tap) func(apiproxy.Write) bool) (cut bool) {
	o.mu.Lock()
	var all []func(apiproxy.Write) bool
	for _, tap := range o.of {
		if look := side(tap); look != nil {
			all = append(all, look)
		}
	}
	o.mu.Unlock()
	for _, look := range all {
		cut = look(w) || cut
	}
	return cut
}
