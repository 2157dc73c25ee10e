// Package torture starts kubelet plugins of DRA drivers as programs, each on a fake node of one real API server, and does to them
// what happens to plugins in clusters: forced deletions, kills, cut connections, renamed nodes. It calls them as the kubelet does. No
// controller and no scheduler runs, so that each object changes when a case changes it.
package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
)

// DefaultPatience bounds each wait for a plugin.
const DefaultPatience = time.Minute

// Options define a run.
type Options struct {
	// Dir is where everything is written: at most 30 bytes, because of Unix sockets below it.
	Dir string
	// Drivers are tortured one after the other.
	Drivers []Driver
	// Render writes a node's hardware into a directory.
	Render func(ctx context.Context, root string) error
	// Cases are the names of the cases to run; none: all.
	Cases []string
	// Patience bounds each wait for a plugin; 0: DefaultPatience. A driver falls that needs longer.
	Patience time.Duration
	Progress func(format string, args ...any)
}

// Outcome is the end of a case.
type Outcome string

// The outcomes.
const (
	Held          Outcome = "held"
	Fell          Outcome = "fell"
	NotApplicable Outcome = "not applicable"
)

// Result is the end of one case with one driver, and what the driver did.
type Result struct {
	Case, Driver string
	Outcome      Outcome
	Did          string
}

// errNotApplicable marks a case that a driver cannot have.
var errNotApplicable = errors.New("not applicable")

// errKit marks a failure of the kit itself, which ends the run.
var errKit = errors.New("the kit failed")

func kit(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errKit, fmt.Errorf(format, args...))
}

// Run runs the cases with each driver. The error is the kit's: a driver that falls is a result.
func Run(ctx context.Context, options Options) ([]Result, error) {
	if options.Patience == 0 {
		options.Patience = DefaultPatience
	}
	chosen, err := choose(options.Cases)
	if err := errors.Join(err, options.check()); err != nil {
		return nil, err
	}
	programs, err := apiserver.Ensured(ctx)
	if err != nil {
		return nil, fmt.Errorf("find etcd and kube-apiserver: %w", err)
	}
	api := filepath.Join(options.Dir, "api")
	if err := os.MkdirAll(api, 0o700); err != nil {
		return nil, fmt.Errorf("make the API server's directory: %w", err)
	}
	server, err := programs.Launch(ctx, api)
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, BearerToken: apiserver.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: server.CA}})
	if err != nil {
		return nil, fmt.Errorf("make the administrator's client: %w", err)
	}
	var results []Result
	for _, driver := range options.Drivers {
		for _, c := range chosen {
			began := time.Now()
			result, err := run(ctx, options, server, client, driver, c, len(results))
			if err != nil {
				return nil, fmt.Errorf("%s, case %q: %w (logs are below %s)", driver.Name, c.name, err, options.Dir)
			}
			options.Progress("%s: %s: %s: %s (%.0f s)", driver.Name, c.name, result.Outcome, result.Did, time.Since(began).Seconds())
			results = append(results, result)
		}
	}
	return results, nil
}

// check rejects options whose table would be about something else than the drivers.
func (o Options) check() error {
	if o.Patience < 0 {
		return fmt.Errorf("a patience of %s: every driver would fall; it is 0 or more", o.Patience)
	}
	seen := map[string]bool{}
	for _, driver := range o.Drivers {
		if seen[driver.Name] {
			return fmt.Errorf("two drivers have the name %q, by which the table tells them apart", driver.Name)
		}
		seen[driver.Name] = true
	}
	return nil
}

// run runs one case on a node of its own.
func run(ctx context.Context, options Options, server *apiserver.Server, client kubernetes.Interface, driver Driver, c testCase,
	number int) (Result, error) {
	result := Result{Case: c.name, Driver: driver.Name, Outcome: Held}
	n := &node{driver: driver, client: client, patience: options.Patience, name: "node-" + strconv.Itoa(number),
		dir: filepath.Join(options.Dir, strconv.Itoa(number))}
	if err := n.make(ctx, options.Render, server); err != nil {
		return Result{}, err
	}
	defer n.remove()
	did, err := c.run(ctx, n)
	switch {
	case errors.Is(err, errKit), ctx.Err() != nil:
		return Result{}, errors.Join(err, context.Cause(ctx))
	case errors.Is(err, errNotApplicable):
		result.Outcome, did = NotApplicable, reason(err)
	case err != nil:
		result.Outcome, did = Fell, err.Error()
	}
	if n.restarts > 0 && result.Outcome != NotApplicable {
		did += fmt.Sprintf("; the plugin ended by itself %d times and was started again, as the kubelet does", n.restarts)
	}
	result.Did = did
	if result.Outcome == Fell {
		return result, nil // its logs stay
	}
	n.remove()
	if err := os.RemoveAll(n.dir); err != nil {
		return Result{}, fmt.Errorf("remove the node's directory: %w", err)
	}
	return result, nil
}
