//go:build gangs

package gangs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

// shared is the package's cluster; each test has a namespace of its own in it.
var shared *fixture.Cluster //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	up, err := fixture.Up(context.Background(), fixture.Options{
		Nodes: nodes, Mode: fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS")),
		Values: map[string]any{
			"gpus":           map[string]any{"enabled": true},
			"computeDomains": map[string]any{"owners": []any{"Job", "JobSet", "LeaderWorkerSet"}},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bring the cluster up:", err)
		return 1
	}
	defer up.Down()
	shared = up
	running, err := startControllers(up)
	defer func() {
		for _, p := range running {
			p.Stop(stopTime)
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the controllers of gangs:", err)
		return 1
	}
	code := m.Run()
	for _, p := range running {
		if err := p.Err(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := up.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the cluster did not last:", err)
		code = 1
	}
	return code
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
