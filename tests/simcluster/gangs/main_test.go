//go:build gangs

package gangs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/process"
)

const (
	// nodes are two racks of 18.
	nodes = 36
	// startTime bounds the start of the controllers, builds included.
	startTime = time.Hour
	stopTime  = 10 * time.Second
)

// racks is the cluster of two racks, which the tests share; each has a namespace of its own in it. It comes up with the first of them:
// the test of 56 racks does not need it.
type racks struct {
	once    sync.Once
	up      *fixture.Cluster
	running []*process.Process
	err     error
}

var two racks //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

// cluster brings the cluster up, if no test has.
func (r *racks) cluster(t *testing.T) *fixture.Cluster {
	t.Helper()
	r.once.Do(func() { r.err = r.start() })
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.up
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	defer two.stop()
	code := m.Run()
	for _, p := range two.running {
		if err := p.Err(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if two.up != nil {
		if err := two.up.Err(); err != nil {
			fmt.Fprintln(os.Stderr, "the cluster did not last:", err)
			code = 1
		}
	}
	return code
}

func (r *racks) stop() {
	for _, p := range r.running {
		p.Stop(stopTime)
	}
	if r.up != nil {
		r.up.Down()
	}
}

func (r *racks) start() (err error) {
	r.up, err = fixture.Up(context.Background(), fixture.Options{
		Nodes: nodes, Mode: fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS")),
		Values: map[string]any{
			"gpus":           map[string]any{"enabled": true},
			"computeDomains": map[string]any{"owners": []any{"Job", "JobSet", "LeaderWorkerSet"}},
		},
	})
	if err != nil {
		return fmt.Errorf("bring the cluster up: %w", err)
	}
	if r.running, err = startControllers(r.up); err != nil {
		return fmt.Errorf("start the controllers of gangs: %w", err)
	}
	return nil
}

// startControllers starts Kueue last, since Kueue looks for the kinds of the others at its start.
func startControllers(up *fixture.Cluster) ([]*process.Process, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	values, err := kueueValues(filepath.Join(root, "examples/kueue/values.yaml"))
	if err != nil {
		return nil, err
	}
	var running []*process.Process
	for _, c := range []controller{
		{name: "jobset", chart: "jobset", certificates: true},
		{name: "lws", chart: "lws"},
		// The aggregator could not reach its API of pending workloads.
		{name: "kueue", chart: "kueue", values: values, gates: map[string]any{"VisibilityOnDemand": false}},
	} {
		p, err := c.start(ctx, up)
		if err != nil {
			return running, err
		}
		running = append(running, p)
	}
	return running, nil
}
