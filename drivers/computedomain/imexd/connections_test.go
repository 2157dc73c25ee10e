package imexd

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/hardware/imex"
)

// matrix is nvidia-imex's answer for nodes of which each row has the states of its connections.
func matrix(rows ...[]imex.ConnectionStatus) map[int]imex.Node {
	nodes := map[int]imex.Node{}
	for from, row := range rows {
		node := imex.Node{Connections: map[int]imex.Connection{}}
		for to, status := range row {
			node.Connections[to] = imex.Connection{Status: status}
		}
		nodes[from] = node
	}
	return nodes
}

func TestConnectionsReportPresentNodes(t *testing.T) {
	const yes, unknown = imex.Connected, imex.Unknown
	const lost, never = imex.ConnectionStatus("RECOVERING"), imex.ConnectionStatus("NEVER_CONNECTED")
	group := Group{Own: 0, Peers: []Peer{{Index: 0}, {Index: 1}, {Index: 2}}}
	type rows = map[int]map[int]imex.ConnectionStatus
	for name, c := range map[string]struct {
		nodes map[int]imex.Node
		want  rows
	}{
		// The last place of the list is free.
		"all": {matrix([]imex.ConnectionStatus{yes, yes, yes, never}, []imex.ConnectionStatus{yes, yes, yes, never},
			[]imex.ConnectionStatus{yes, yes, yes, never}, []imex.ConnectionStatus{unknown, unknown, unknown, unknown}),
			rows{0: {}, 1: {}, 2: {}}},
		"a node that is cut off": {matrix([]imex.ConnectionStatus{yes, yes, lost}, []imex.ConnectionStatus{yes, yes, never},
			[]imex.ConnectionStatus{unknown, unknown, unknown}), rows{0: {2: lost}, 1: {2: never}}},
		"only its own": {matrix([]imex.ConnectionStatus{yes, yes, yes}), rows{0: {}}},
		"nothing":      {nil, rows{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(Connections{Rows: c.want}, connectionsOf(group, c.nodes)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestConnectionsLimitQueries(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		if _, err := s.Connections(t.Context()); err == nil {
			t.Error("there are connections without a daemon")
		}
		s.Join(two())
		pass(100 * time.Millisecond)
		daemon := r.newest(t, 1)
		daemon.mu.Lock()
		daemon.nodes = matrix([]imex.ConnectionStatus{imex.Connected, "RECOVERING"})
		daemon.mu.Unlock()
		for range 5 {
			known, err := s.Connections(t.Context())
			if err != nil || known.Rows[0][1] != "RECOVERING" {
				t.Fatalf("%+v, %v", known, err)
			}
		}
		if daemon.listed != 1 {
			t.Errorf("five questions asked the daemon %d times", daemon.listed)
		}
		pass(connectionsAge)
		daemon.hang()
		for range 5 {
			if known, err := s.Connections(t.Context()); err == nil {
				t.Errorf("a daemon that hangs is connected: %+v", known)
			}
		}
		if daemon.listed != 2 {
			t.Errorf("five more asked it %d times", daemon.listed-1)
		}
	})
}
