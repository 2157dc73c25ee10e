package controlplane

import (
	"fmt"
	"net"
)

type ports struct {
	apiServer, etcd, etcdPeer, scheduler int
}

// choosePorts takes the API server's port as asked (0: any) and free ones for the rest. A port is free when chosen; what
// takes it before its program does shows in that program's log, which Start then reports.
func choosePorts(apiServer int) (ports, error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close() //nolint:errcheck // it only held the port
		}
	}()
	chosen := make([]int, 4)
	for i, wanted := range []int{apiServer, 0, 0, 0} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", wanted))
		if err != nil {
			if wanted != 0 {
				return ports{}, fmt.Errorf("the API server cannot have port %d: %w; choose another one, or 0 for any that is free", wanted, err)
			}
			return ports{}, fmt.Errorf("find a free port: %w", err)
		}
		listeners = append(listeners, l)
		chosen[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports{apiServer: chosen[0], etcd: chosen[1], etcdPeer: chosen[2], scheduler: chosen[3]}, nil
}
