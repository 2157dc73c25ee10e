package imexd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gpufabric.io/drivers/hardware/imex"
)

// connectionsAge is the maximum age of a cached answer. So nvidia-imex-ctl -N runs at most once in that time, for all callers together.
const connectionsAge = 2 * time.Second

// Connections are one node's daemon's view of the connections between the daemons of its group.
type Connections struct {
	// Own is the index of the queried daemon's node.
	Own int `json:"own"`
	// Rows are the nodes whose connections are known, by index. A row has the peers that the node is not connected with, by index, each with
	// nvidia-imex's word for the state of the connection.
	Rows map[int]map[int]imex.ConnectionStatus `json:"rows"`
}

// serving is the daemon that runs, and its group; the zero value: none.
type serving struct {
	daemon imex.Daemon
	group  Group
}

// connectionsAnswer is the last answer.
type connectionsAnswer struct {
	daemon imex.Daemon
	at     time.Time
	nodes  map[int]imex.Node
	err    error
}

func (s *Supervisor) serves(now serving) { s.mu.Lock(); defer s.mu.Unlock(); s.serving = now }

// Connections queries the running daemon for the connections of its group. It runs on request only: the daemon's own state needs no
// connection, and one daemon can answer for many.
func (s *Supervisor) Connections(ctx context.Context) (Connections, error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	now := s.serving
	s.mu.Unlock()
	if now.daemon == nil {
		return Connections{}, errors.New("no IMEX daemon runs here now")
	}
	if s.answers.daemon != now.daemon || time.Since(s.answers.at) >= connectionsAge {
		// The answer serves others too, so it does not end with the first caller. The query has a limit of its own.
		nodes, err := now.daemon.Nodes(context.WithoutCancel(ctx))
		s.answers = connectionsAnswer{daemon: now.daemon, at: time.Now(), nodes: nodes, err: err}
	}
	if s.answers.err != nil {
		return Connections{}, fmt.Errorf("query the IMEX daemon for its connections: %w", s.answers.err)
	}
	return connectionsOf(now.group, s.answers.nodes), nil
}

// connectionsOf reduces an answer to the nodes that there are: the list has a name for each node that may come.
func connectionsOf(group Group, nodes map[int]imex.Node) Connections {
	known := Connections{Own: group.Own, Rows: map[int]map[int]imex.ConnectionStatus{}}
	for _, from := range group.Peers {
		row, says := map[int]imex.ConnectionStatus{}, false
		for _, to := range group.Peers {
			status := nodes[from.Index].Connections[to.Index].Status
			if to.Index == from.Index || status == "" || status == imex.Unknown {
				continue
			}
			if says = true; status != imex.Connected {
				row[to.Index] = status
			}
		}
		if says {
			known.Rows[from.Index] = row
		}
	}
	return known
}
