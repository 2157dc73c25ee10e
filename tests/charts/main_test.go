package charts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/build/apiserver"
)

// shared is what the package's tests use one after another.
var shared *environment //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "charts")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	debug.SetGCPercent(400) // with the default, a sixth of this process's time is garbage collection; its live heap is small
	shared = &environment{dir: dir, servers: map[string]*running{},
		rendered: &rendered{charts: map[string][]Object{}, files: map[string][]Object{}}}
	defer shared.stop()
	return m.Run()
}

// environment has an API server for each set of flags that a test needs, the program, and the charts by their values. Each is made when the
// first test needs it.
type environment struct {
	dir      string
	servers  map[string]*running
	program  string
	rendered *rendered
}

// running is an API server that tests use one after another.
type running struct {
	*apiserver.Server
	own map[string]bool // keys of the objects that the server makes for itself
}

func (e *environment) stop() {
	for _, s := range e.servers {
		s.Stop()
	}
	_ = os.RemoveAll(e.dir) // the tests have their results
}

// server returns the server with these flags, and whether it is new.
func (e *environment) server(ctx context.Context, flags []string) (s *running, fresh bool, err error) {
	key := strings.Join(flags, " ")
	if s = e.servers[key]; s != nil {
		return s, false, nil
	}
	programs, err := apiserver.Ensured(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("the test needs etcd and kube-apiserver: %w", err)
	}
	dir, err := os.MkdirTemp(e.dir, "server")
	if err != nil {
		return nil, false, err
	}
	launched, err := programs.Launch(ctx, dir, flags...)
	if err != nil {
		return nil, false, fmt.Errorf("start an API server: %w", err)
	}
	s = &running{Server: launched}
	e.servers[key] = s
	return s, true, nil
}

// end stops the server with these flags.
func (e *environment) end(flags []string) {
	key := strings.Join(flags, " ")
	e.servers[key].Stop()
	delete(e.servers, key)
}

// buildProgram builds gpufabric and gpufabric-node from the checkout, as they ship, once, and returns the path of the former.
func buildProgram(t *testing.T) string {
	t.Helper()
	if shared.program == "" {
		build := exec.CommandContext(t.Context(), "make", "--silent", "-C", Dir(".."), "build-gpufabric")
		if said, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the program: %v\n%s", err, said)
		}
		shared.program = Dir("../bin/gpufabric")
	}
	return shared.program
}

// programOf is the program that runs a role, beside the one at program.
func programOf(program, role string) string {
	if slices.Contains([]string{"controller", "webhook"}, role) {
		return program
	}
	return program + "-node"
}
