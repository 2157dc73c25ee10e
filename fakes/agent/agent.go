// Package agent renders the fake node that a Kubernetes node's labels ask for, and again when they change.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// Labels of a Kubernetes node.
const (
	LabelProfile = "fakefabric.gpufabric.io/profile"
	LabelIndex   = "fakefabric.gpufabric.io/index"
	LabelNodes   = "fakefabric.gpufabric.io/nodes"
)

// Options say which node to follow and where to render.
type Options struct {
	// NodeName is the Kubernetes node's name.
	NodeName string
	// Root is where the node's hardware is rendered.
	Root string
	// Listen is the address of /healthz and of the control endpoint (see control.go).
	Listen string
	// Tree gives LibraryDir, Tools and PlainDevices for renderings; the rest of it is set from the labels.
	Tree tree.Options
	// API reads nodes; see InCluster.
	API *API
	Log *slog.Logger
}

// agent is the running state: what was rendered last, and what went wrong.
type agent struct {
	Options
	mu      sync.Mutex
	problem error
	current string
}

var errStarting = errors.New("the node's labels have not been read yet")

// Run follows the node's labels until ctx ends.
func Run(ctx context.Context, o Options) error {
	a := &agent{Options: o, problem: errStarting}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen for health checks: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.health)
	mux.HandleFunc("GET /node", a.describe)
	mux.HandleFunc("GET /events", a.events)
	mux.HandleFunc("POST /events/{event}", a.inject)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.syncMIG(ctx) })
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	wg.Go(func() {
		if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			o.Log.Error("health checks are no longer answered", "error", err)
		}
	})
	defer func() { _ = server.Close() }() // answers under way may be cut
	a.follow(ctx)
	return nil
}

// follow renders for every state of the labels; when the API server cannot be reached it tries again, at most every 10 s.
func (a *agent) follow(ctx context.Context) {
	wait := time.Second
	for {
		err := a.API.WatchLabels(ctx, a.NodeName, func(labels map[string]string) {
			wait = time.Second
			a.apply(ctx, labels)
		})
		if ctx.Err() != nil {
			return
		}
		a.Log.Warn("following the node's labels", "error", err, "retry", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			wait = min(2*wait, 10*time.Second)
		}
	}
}

// apply makes the hardware what the labels say.
func (a *agent) apply(ctx context.Context, labels map[string]string) {
	wanted := fmt.Sprint(labels[LabelProfile], " ", labels[LabelIndex], " ", labels[LabelNodes])
	a.mu.Lock()
	same := a.current == wanted && a.problem == nil
	a.mu.Unlock()
	if same {
		return
	}
	err := a.render(ctx, labels)
	if err != nil {
		a.Log.Error("render", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current, a.problem = wanted, err
}

func (a *agent) render(ctx context.Context, labels map[string]string) error {
	name := labels[LabelProfile]
	if name == "" {
		a.Log.Info("no profile is asked for; removing the hardware", "label", LabelProfile)
		return tree.Remove(a.Root)
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
	// A restarted agent leaves the hardware as it is: what clients and faults have changed in it since is worth keeping.
	if r, err := tree.ReadRendered(a.Root); err == nil && r.Profile == o.Profile.Name && r.Node == o.Node && r.Nodes == o.Nodes {
		a.Log.Info("already rendered", "profile", name, "node", o.Node)
		return nil
	}
	begin := time.Now()
	if err := tree.Render(ctx, o); err != nil {
		return err
	}
	a.Log.Info("rendered", "profile", name, "node", o.Node, "root", a.Root, "ms", time.Since(begin).Milliseconds())
	return nil
}

func number(labels map[string]string, label string) (int, error) {
	text, ok := labels[label]
	if !ok {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("label %s is %q; a number from 0 on is wanted", label, text)
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
