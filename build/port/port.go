// Package port finds TCP ports for programs that need a number before they listen.
package port

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// The ports that Free chooses among lie below those that Linux gives out by itself (net.ipv4.ip_local_port_range, from 32768 on by
// default). One of that range would be free when it was chosen, and another's listener or connection could have it before its program
// listens, or while the program is away and comes back.
const (
	lowest, highest = 12_000, 32_000
	// tries is how many ports are looked at for one that is free.
	tries = 1000
)

// Free finds different TCP ports of 127.0.0.1 without a listener.
func Free(count int) ([]int, error) {
	ports := make([]int, 0, count)
	for range tries {
		if len(ports) == count {
			return ports, nil
		}
		port := lowest + rand.IntN(highest-lowest) //nolint:gosec // no secret
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look whether port %d is free: %w", port, err)
		}
		defer func() { _ = listener.Close() }() // at the end: until then it is not found again
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("%d of %d ports found that are free, in %d tries between %d and %d", len(ports), count, tries, lowest, highest)
}
