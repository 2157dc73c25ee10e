package fabric

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/program"
	clusterprogram "gpufabric.io/drivers/program/cluster"
	nodeprogram "gpufabric.io/drivers/program/node"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/tests/simcluster/simnode"
)

// Repository is the image whose containers really run.
const Repository = "ghcr.io/gpufabric/gpufabric"

// goroutines runs the roles of gpufabric as goroutines of this process, with fakes in Go for the libraries and programs that
// they would load or start.
type goroutines struct {
	heartbeat time.Duration // of the fake IMEX daemons
	// files is shared by all roles: a thousand nodes take one inotify instance.
	files    *filewatch.Watcher
	messages *Messages
}

var _ simnode.Runtime = (*goroutines)(nil)

// newGoroutines makes the runtime for a cluster of that many nodes.
func newGoroutines(nodes int) *goroutines {
	g := &goroutines{heartbeat: defaultHeartbeat, files: &filewatch.Watcher{}, messages: &Messages{}}
	if nodes > 2*rack {
		// 1,008 nodes in racks of 18 keep about 17,000 connections. With two messages a second on each they would use both
		// cores.
		g.heartbeat = slowHeartbeat
	}
	return g
}

// Owns reports whether the image is gpufabric's.
func (g *goroutines) Owns(image string) bool { return ownImage(image) }

// Run runs the role that the container's arguments name. A role cannot be killed like a process: simnode.ErrKilled only cancels
// it, and then it ends in order.
func (g *goroutines) Run(ctx context.Context, container simnode.Container) error {
	return g.call(ctx, container, container.Args)
}

// Exec runs a probe's command, which is gpufabric itself with other arguments.
func (g *goroutines) Exec(ctx context.Context, container simnode.Container, command []string) error {
	return g.call(ctx, container, command)
}

func (g *goroutines) call(ctx context.Context, container simnode.Container, args []string) (err error) {
	defer func() {
		if r := recover(); r != nil { // only of this goroutine; a panic elsewhere ends the simulator, as it should
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	host := program.Host{
		Getenv: func(name string) string { return environment(container, name) },
		Stdout: container.Output, Stderr: container.Output,
		NVML: library, IMEX: imexDaemons{heartbeat: g.heartbeat, container: container, messages: g.messages}, Execute: execute, Files: g.files,
		RESTConfig: func() (*rest.Config, error) {
			if container.REST == nil {
				return nil, errors.New("the pod has no service account token")
			}
			return rest.CopyConfig(container.REST), nil
		},
	}
	name, args := programOf(args)
	program := clusterprogram.Program()
	if name == nodeprogram.Name {
		program = nodeprogram.Program()
	}
	return program.Run(ctx, host, arguments(container, args)...)
}

// defaultPlaces are the environment variables of flags, with the roles' default paths. Those paths exist in a container's file
// system and not in this machine's.
var defaultPlaces = map[string]string{
	"HOSTS_FILE": "/etc/hosts",
	"IMEXD_DIR":  computedomain.DaemonDir,
}

func environment(container simnode.Container, name string) string {
	if value := container.Env[name]; value != "" {
		return value
	}
	if place := defaultPlaces[name]; place != "" {
		if real, ok := container.Real(place); ok {
			return real
		}
		// The role must not use this machine's own.
		return "/nonexistent" + place
	}
	return ""
}

// library is the fake NVML of the node whose driver root this is.
func library(driverRoot string) nvml.Interface {
	// The driver root is the fake tree's own, or a node's root directory whose usr is a link to it.
	usr, err := filepath.EvalSymlinks(filepath.Join(driverRoot, "usr"))
	if err != nil {
		return nvmlstate.New(driverRoot) // which answers that no driver is loaded
	}
	// A plugin's container has the node's /dev read-only: it makes no device nodes there.
	return nvmlstate.New(filepath.Dir(filepath.Dir(usr)), nvmlstate.ReadOnlyDev)
}

// everywhere matches the value of a flag that listens on all addresses of the pod's network namespace.
var everywhere = regexp.MustCompile(`^(--[a-z-]+=)(?:0\.0\.0\.0)?(:[0-9]+)$`)

// programOf splits a container's command and arguments into the program's name and its arguments. Without a name it is the image's
// entrypoint.
func programOf(args []string) (string, []string) {
	if len(args) > 0 {
		if name := path.Base(args[0]); name == clusterprogram.Name || name == nodeprogram.Name {
			return name, args[1:]
		}
	}
	return clusterprogram.Name, args
}

// arguments are a role's arguments as the simulation needs them: they listen on the pod's address, since the pod has no network namespace
// here.
func arguments(container simnode.Container, args []string) []string {
	changed := make([]string, 0, len(args))
	for _, arg := range args {
		changed = append(changed, everywhere.ReplaceAllString(arg, "${1}"+container.Address+"${2}"))
	}
	if len(changed) > 0 && changed[0] == "webhook" {
		changed = append(changed, "--address="+container.Address)
	}
	return changed
}

func ownImage(image string) bool { return imageOf(image, Repository) }

// imageOf reports whether an image is from a repository.
func imageOf(image, repository string) bool {
	rest, ok := strings.CutPrefix(image, repository)
	return ok && (rest == "" || rest[0] == ':' || rest[0] == '@')
}
