// Package agent renders the fake node that a Kubernetes node's labels describe, and renders it again when they change.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"gpufabric.io/fakes/cdi"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// Labels of a Kubernetes node.
const (
	LabelProfile = "fakefabric.gpufabric.io/profile"
	LabelIndex   = "fakefabric.gpufabric.io/index"
	LabelNodes   = "fakefabric.gpufabric.io/nodes"
)

// Options select the node to follow and the place of its rendering.
type Options struct {
	// NodeName is the Kubernetes node's name.
	NodeName string
	// Root is where the node's hardware is rendered.
	Root string
	// Listen is the address of /healthz, for the kubelet.
	Listen string
	// Control is the address of the control endpoint (see control.go), which does not authenticate its callers: a loopback address, or
	// empty for none.
	Control string
	// Profile is that of nodes without the profile's label; empty: they have no hardware.
	Profile string
	// Sysfs is where the machine's own sysfs is mounted. Where it shows an NVIDIA GPU, Run refuses to start, unless BesideGPUs is set.
	Sysfs      string
	BesideGPUs bool
	// Faults: FabricFaults that select the node happen to it, and the node's results are written into their status.
	Faults bool
	// CDIRoot is the container runtime's directory of CDI specifications; empty: none are written.
	CDIRoot string
	// Tree gives LibraryDir, Tools, PlainDevices and NVIDIAPlugins for renderings; the rest of it is set from the labels.
	Tree tree.Options
	// API reads nodes; see InCluster.
	API *API
	Log *slog.Logger
}

// agent is the running state: the last rendering, and the last error.
type agent struct {
	Options
	// hardware is held while the node is rendered, and while FabricFaults happen to it.
	hardware sync.Mutex
	mu       sync.Mutex
	problem  error
	current  string
	// labels are the node's, completed by Options.Profile; nil until they have been read.
	labels map[string]string
	faults *faults
}

// Ports on which the agent listens.
const (
	forHealth = "health checks"
	forEvents = "events to inject"
)

var errStarting = errors.New("the node's labels have not been read yet")

// Run follows the node's labels until ctx ends.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	a := &agent{Options: o, problem: errStarting, faults: newFaults()}
	var wg sync.WaitGroup
	defer wg.Wait()
	health, control := http.NewServeMux(), http.NewServeMux()
	health.HandleFunc("GET /healthz", a.health)
	control.HandleFunc("GET /node", a.describe)
	control.HandleFunc("GET /events", a.events)
	control.HandleFunc("POST /events/{event}", a.inject)
	stop, err := a.serve(ctx, &wg, forHealth, o.Listen, health)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", forHealth, err)
	}
	defer stop()
	if o.Control != "" {
		stop, err := a.serve(ctx, &wg, forEvents, o.Control, control)
		if err != nil {
			return fmt.Errorf("listen for %s: %w", forEvents, err)
		}
		defer stop()
	}
	wg.Go(func() { a.syncMIG(ctx) })
	if o.Faults {
		wg.Go(func() { a.followFaults(ctx) })
		wg.Go(func() { a.keepFaults(ctx) })
	}
	a.follow(ctx)
	return nil
}

// serve answers on the address until ctx ends or stop is called; requests in progress may be cut off. The log has the address, with the
// port that the kernel chose for port 0.
func (a *agent) serve(ctx context.Context, wg *sync.WaitGroup, purpose, address string, handler http.Handler) (stop func(), err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	a.Log.Info("listening", "for", purpose, "address", l.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	release := context.AfterFunc(ctx, func() { _ = server.Close() })
	wg.Go(func() {
		if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			a.Log.Error("requests are no longer answered", "address", address, "error", err)
		}
	})
	return func() {
		release()
		_ = server.Close()
	}, nil
}

// follow renders for every state of the labels.
func (a *agent) follow(ctx context.Context) {
	a.retry(ctx, "following the node's labels", func(reached func()) error {
		return a.API.WatchLabels(ctx, a.NodeName, func(labels map[string]string) error {
			reached()
			return a.apply(ctx, labels)
		})
	})
}

// retry calls watch again whenever it ends, until ctx ends. While the API server cannot be reached the intervals grow up to 10 s; watch
// calls reached when it was.
func (a *agent) retry(ctx context.Context, what string, watch func(reached func()) error) {
	wait := time.Second
	for {
		err := watch(func() { wait = time.Second })
		if ctx.Err() != nil {
			return
		}
		a.Log.Warn(what, "error", err, "retry", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			wait = min(2*wait, 10*time.Second)
		}
	}
}

// apply renders the hardware that the labels describe. Its error is the API server's; those of a rendering are reported to the kubelet.
func (a *agent) apply(ctx context.Context, labels map[string]string) error {
	described, err := a.described(ctx, labels)
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.current == "" { // otherwise the hardware is what it was
			a.problem = err
		}
		return err
	}
	wanted := fmt.Sprint(described[LabelProfile], " ", described[LabelIndex], " ", described[LabelNodes])
	a.hardware.Lock()
	defer a.hardware.Unlock()
	defer a.faults.changed() // their selectors may match now
	a.mu.Lock()
	a.labels = maps.Clone(described)
	if a.labels == nil {
		a.labels = map[string]string{}
	}
	same := a.current == wanted && a.problem == nil
	a.mu.Unlock()
	if same {
		return nil
	}
	err = a.render(ctx, described)
	if err != nil {
		a.Log.Error("render", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current, a.problem = wanted, err
	return nil
}

func (a *agent) render(ctx context.Context, labels map[string]string) error {
	name := labels[LabelProfile]
	if name == "" {
		a.Log.Info("the node has no profile label; removing the hardware", "label", LabelProfile)
		return errors.Join(a.removeSpecs(), tree.Remove(a.Root))
	}
	o := a.Tree
	o.Root = a.Root
	var errs [3]error
	o.Profile, errs[0] = profile.Load(name)
	o.Node, errs[1] = number(labels, LabelIndex)
	o.Nodes, errs[2] = number(labels, LabelNodes)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	// A restarted agent leaves the hardware as it is: changes by clients and faults since the rendering must be kept.
	if r, err := tree.ReadRendered(a.Root); err == nil && r.Profile == o.Profile.Name && r.Node == o.Node && r.Nodes == o.Nodes &&
		r.NVIDIAPlugins == o.NVIDIAPlugins {
		a.Log.Info("already rendered", "profile", name, "node", o.Node)
		return a.writeSpecs(o) // /var/run is empty after a reboot
	}
	if err := removeRecord(a.Root); err != nil {
		return err // another machine: nothing has happened to it
	}
	begin := time.Now()
	if err := tree.Render(ctx, o); err != nil {
		return err
	}
	a.Log.Info("rendered", "profile", name, "node", o.Node, "root", a.Root, "ms", time.Since(begin).Milliseconds())
	return a.writeSpecs(o)
}

// writeSpecs gives the rendered node to the container runtime.
func (a *agent) writeSpecs(o tree.Options) error {
	if a.CDIRoot == "" {
		return nil
	}
	return cdi.Describe(a.CDIRoot, cdi.Options{Root: a.Root, Node: o.Profile.Node(o.Node), Architecture: runtime.GOARCH})
}

func (a *agent) removeSpecs() error {
	if a.CDIRoot == "" {
		return nil
	}
	return cdi.Remove(a.CDIRoot)
}

func number(labels map[string]string, label string) (int, error) {
	text, ok := labels[label]
	if !ok {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("label %s is %q, want a number of 0 or more", label, text)
	}
	return n, nil
}

func (a *agent) health(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.problem != nil {
		http.Error(w, a.problem.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok:", a.current)
}
