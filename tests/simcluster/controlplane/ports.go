package controlplane

import (
	"fmt"
	"net"

	"gpufabric.io/build/port"
)

type ports struct {
	apiServer, etcd, etcdPeer, scheduler int
}

// choosePorts takes the API server's port as asked (0: any) and free ones for the rest. If another program takes a port first,
// the component's log says so, and Start reports that.
func choosePorts(apiServer int) (ports, error) {
	if apiServer != 0 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", apiServer))
		if err != nil {
			return ports{}, fmt.Errorf("the API server cannot have port %d: %w; choose another one, or 0 for any that is free", apiServer, err)
		}
		defer l.Close() //nolint:errcheck // it only held the port
	}
	chosen, err := port.Free(4)
	if err != nil {
		return ports{}, err
	}
	if apiServer == 0 {
		apiServer = chosen[0]
	}
	return ports{apiServer: apiServer, etcd: chosen[1], etcdPeer: chosen[2], scheduler: chosen[3]}, nil
}
