package program

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/state"
)

// runIMEX is nvidia-imex: it stays in the foreground and looks its peers up again on SIGUSR1.
func runIMEX(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("nvidia-imex", flag.ContinueOnError)
	path := flags.String("c", imex.DefaultConfig, "configuration file")
	version := flags.Bool("version", false, "print the version and exit")
	flags.BoolVar(version, "v", false, "print the version and exit")
	if done, err := parse(flags, args, stdout); done || err != nil {
		return err
	}
	root, err := state.FindRoot()
	if err != nil {
		return err
	}
	o, err := imexOptions(root)
	if err != nil {
		return err
	}
	if *version {
		fmt.Fprintln(stdout, "IMEX version is:", o.Version)
		return nil
	}
	if o.Needs, err = imexNeeds(root); err != nil {
		return err
	}
	config, err := imex.ReadConfig(*path)
	if err != nil {
		return err
	}
	log := stderr
	if config.LogFile != "" {
		f, err := os.OpenFile(config.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("LOG_FILE_NAME: %w", err)
		}
		defer func() { _ = f.Close() }() // every line is written at once
		log = io.MultiWriter(stderr, f)
	}
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	d, err := imex.New(config, o)
	if err != nil {
		return err
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGUSR1)
	defer signal.Stop(reload)
	running, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-running.Done():
				return
			case <-reload:
				d.Reload()
			}
		}
	}()
	err = d.Run(ctx)
	cancel()
	<-done
	return err
}

// The environment by which a simulation without containers describes the daemon's container.
const (
	// envContainer is the container's bundle, as an OCI runtime gets it.
	envContainer = "FAKEFABRIC_CONTAINER"
	// envDev replaces /dev, envRun /var/run/nvidia-imex, envHosts /etc/hosts.
	envDev   = "FAKEFABRIC_DEV"
	envRun   = "FAKEFABRIC_IMEX_RUN"
	envHosts = "FAKEFABRIC_HOSTS"
)

// imexOptions gives a daemon its node's version and faults, and its container's files.
func imexOptions(root string) (imex.Options, error) {
	f, err := state.Open(root)
	if err != nil {
		return imex.Options{}, err
	}
	defer func() { _ = f.Close() }() // only read from
	body, err := f.Read()
	if err != nil {
		return imex.Options{}, err
	}
	dir := filepath.Dir(state.Path(root))
	o := imex.Options{Version: state.String(body.Node.DriverVersion[:]), StateDir: dir,
		Faults: imex.FaultsFile(filepath.Join(dir, imex.FaultsName))}
	o.PersistDir = cmp.Or(os.Getenv(envRun), imex.PersistDir)
	if hosts := os.Getenv(envHosts); hosts != "" {
		o.Resolve = imex.HostsFile(hosts)
	}
	if bundle := os.Getenv(envContainer); bundle != "" {
		container, err := imex.ReadContainer(bundle)
		if err != nil {
			return imex.Options{}, err
		}
		o.Surroundings, o.PersistDir = container, container.Mounts[imex.PersistDir]
		return o, nil
	}
	o.Surroundings = imex.Machine{Dev: cmp.Or(os.Getenv(envDev), "/dev"), LibraryDirs: libraryDirs()}
	return o, nil
}

// imexNeeds are the device nodes that a daemon needs. The container of NVIDIA's DRA driver has the node's state alone.
func imexNeeds(root string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(root, "proc")); !errors.Is(err, fs.ErrNotExist) {
		return imex.Needs(root)
	}
	f, err := state.Open(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	body, err := f.Read()
	if err != nil {
		return nil, err
	}
	var minors []uint32
	for _, gpu := range body.GPUs {
		minors = append(minors, gpu.Core.Minor)
	}
	return imex.NeedsOf(minors), nil
}

// libraryDirs are where this program's loader would look: it is linked without one. The libraries of a driver root lie beside its programs.
func libraryDirs() []string {
	dirs := []string{"/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}
	if exe, err := state.Executable(); err == nil {
		prefix := filepath.Dir(filepath.Dir(exe))
		dirs = append([]string{filepath.Join(prefix, "lib"), filepath.Join(prefix, "lib64")}, dirs...)
	}
	return dirs
}

// runIMEXControl is nvidia-imex-ctl.
func runIMEXControl(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("nvidia-imex-ctl", flag.ContinueOnError)
	path := flags.String("c", imex.DefaultConfig, "configuration file of the daemon to ask")
	// NVIDIA's DRA driver queries a host's service in this way (its page on prerequisites, "Host IMEX readiness check").
	socket := flags.String("u", "", "control socket of the daemon to ask; it needs no configuration file")
	local := flags.Bool("q", false, "print the local daemon's state")
	all := flags.Bool("N", false, "print all nodes, their connections and the domain's state")
	nodes := flags.Bool("n", false, "print all nodes without their connections")
	hosts := flags.Bool("H", false, "with -N or -n: print host names too")
	asJSON := flags.Bool("j", false, "print JSON")
	if done, err := parse(flags, args, stdout); done || err != nil {
		return err
	}
	if !*local && !*all && !*nodes {
		return errors.New("an option is missing: -q, -N or -n")
	}
	config := imex.Config{CommandSocket: *socket}
	if *socket == "" {
		var err error
		if config, err = imex.ReadConfig(*path); err != nil {
			return err
		}
	}
	question := imex.OfDomain
	if *local {
		question = imex.OfDaemon
	}
	s, err := imex.Query(ctx, config, question)
	switch {
	case *local && *asJSON:
		return errors.Join(json.NewEncoder(stdout).Encode(map[string]imex.State{"status": s.Local}), err)
	case *local:
		fmt.Fprintln(stdout, s.Local)
		return err
	case err != nil:
		return err
	case *asJSON:
		return s.WriteJSON(stdout)
	case *all:
		return s.WriteText(stdout, *hosts)
	}
	return s.WriteNodes(stdout, *hosts)
}
