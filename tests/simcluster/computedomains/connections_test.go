package computedomains

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
)

func TestConnectionsNameANodeThatPeersCannotReach(t *testing.T) {
	const first, size = 3, 3
	n := shared.Namespace(t)
	imports := form(n, t, first, size)
	cut := cluster.NodeName(first)
	path := filepath.Join(stateOf(first), imex.FaultsName)
	mend := func() {
		if err := imex.WriteFaults(path, imex.Faults{}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(mend)
	whole := fmt.Sprintf(": %s with ", cut) // named first, since it lacks most
	named := func() time.Duration {
		t.Helper()
		if err := imex.WriteFaults(path, imex.Faults{Partitioned: []string{"*"}}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		n.AwaitDomain("d", func(d domain.Domain) bool {
			return strings.HasPrefix(d.Degraded, "DaemonsDisconnected") && strings.Contains(d.Degraded, whole) && d.Status == domain.Ready
		})
		return time.Since(began)
	}
	connected := func() {
		t.Helper()
		mend()
		n.AwaitDomain("d", func(d domain.Domain) bool { return d.Degraded == "" && d.Status == domain.Ready })
	}
	t.Logf("measured: named %s after the cut; daemons are asked once they have been READY for 10 s", named())
	n.AwaitEvent("d", "DaemonsDisconnected", cut)
	connected()
	for range 2 { // now they have been
		t.Logf("measured: named %s after the cut of a settled domain", named())
		connected()
	}
	for i, memory := range imports {
		if !memory.Alive() {
			t.Errorf("the pod on node %d lost its memory", first+i)
		}
	}
}
