// Package role runs other projects' programs in a simulated cluster by their command lines: a scheduler or a controller once, a kubelet
// plugin on each node.
package role

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/process"
)

const (
	// stopGrace is how long a program may take to end in order.
	stopGrace = 10 * time.Second
	// backOff is before a node's program that ended is started again: the kubelet's first. It is longer than `down` waits for processes.
	backOff = 10 * time.Second
)

// Role is a program of another project. In its arguments, words in braces stand for places: {kubeconfig} and {cluster} (the cluster's
// directory) everywhere; on a node also {node} (its name), {hardware} (the fake tree with sys, proc, dev and driver), {kubelet}, {cdi},
// {state} and {dir} (the node's directory).
type Role struct {
	// Cluster is the cluster's directory.
	Cluster string
	// Command is the program, as a path or a name on the PATH, and its arguments.
	Command []string
	// Output gets what the program writes where it runs once, and the ends of those on nodes.
	Output io.Writer
}

// ofNode are the places that only a node has.
var ofNode = [...]string{"{node}", "{hardware}", "{kubelet}", "{cdi}", "{state}", "{dir}"}

// program finds the program's path.
func (r Role) program() (string, error) {
	if len(r.Command) == 0 {
		return "", errors.New("name a program and its arguments, after --")
	}
	path, err := exec.LookPath(r.Command[0])
	if err != nil {
		return "", fmt.Errorf("run %s: %w", r.Command[0], err)
	}
	return path, nil
}

func (r Role) kubeconfig() string { return filepath.Join(r.Cluster, "kubeconfig") }

// environment is beside the caller's own.
func (r Role) environment() []string { return []string{"KUBECONFIG=" + r.kubeconfig()} }

func (r Role) arguments(places ...string) []string {
	replace := strings.NewReplacer(append(places, "{kubeconfig}", r.kubeconfig(), "{cluster}", r.Cluster)...)
	var arguments []string
	for _, argument := range r.Command[1:] {
		arguments = append(arguments, replace.Replace(argument))
	}
	return arguments
}

// Once runs the program until it ends, or until ctx is done, which is no error.
func (r Role) Once(ctx context.Context) error {
	path, err := r.program()
	if err != nil {
		return err
	}
	for _, argument := range r.Command[1:] {
		if i := slices.IndexFunc(ofNode[:], func(place string) bool { return strings.Contains(argument, place) }); i >= 0 {
			return fmt.Errorf("argument %q has %s, which each node has: run it with --each-node", argument, ofNode[i])
		}
	}
	cmd := exec.CommandContext(ctx, path, r.arguments()...)
	cmd.Stdout, cmd.Stderr = r.Output, r.Output
	cmd.Env = slices.Concat(os.Environ(), r.environment(), []string{process.MarkerEnv + "=" + r.Cluster})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", r.Command[0], err)
	}
	return nil
}

// onNode runs the program on a node, again whenever it ends, until ctx is done.
func (r Role) onNode(ctx context.Context, path, node string) {
	for {
		err := r.onceOnNode(ctx, path, node)
		if ctx.Err() != nil {
			return
		}
		if _, gone := cluster.ReadRecord(r.Cluster); gone != nil {
			return // `down` ended it
		}
		fmt.Fprintf(r.Output, "%s: %v\n%s: started again after %s\n", node, err, node, backOff)
		select {
		case <-ctx.Done():
			return
		case <-time.After(backOff):
		}
	}
}

func (r Role) onceOnNode(ctx context.Context, path, node string) error {
	index, err := cluster.NodeIndex(node)
	if err != nil {
		return err
	}
	dir, name := cluster.NodeDir(r.Cluster, index), filepath.Base(path)
	disk := filepath.Join(dir, "r")
	cdi, state := filepath.Join(disk, "var/run/cdi"), filepath.Join(disk, "var/lib", name)
	for _, place := range []string{cdi, state} {
		if err := os.MkdirAll(place, 0o755); err != nil {
			return fmt.Errorf("make the program's directories: %w", err)
		}
	}
	p, err := process.Start(process.Spec{
		Name: name + "-" + node, ClusterDir: r.Cluster, LogDir: filepath.Join(r.Cluster, "logs"), Path: path,
		Args: r.arguments("{node}", node, "{hardware}", fabric.HardwareOf(dir), "{kubelet}", filepath.Join(dir, "k"), "{cdi}", cdi,
			"{state}", state, "{dir}", dir),
		Env: append(r.environment(), "NODE_NAME="+node),
	})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		p.Stop(stopGrace)
	case <-p.Exited():
	}
	return p.Err()
}
