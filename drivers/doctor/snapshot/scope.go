package snapshot

import "time"

// Scope is the subject of the user's question, which limits the objects to read.
type Scope struct {
	// Namespace is the namespace of the object in question; empty: none.
	Namespace string
	// Pod is the pod in question; empty: none.
	Pod string
	// System is gpufabric's namespace, which is read where reading all namespaces is not allowed.
	System string
	// Preflight limits the reading to objects that an installation depends on, and adds the pods of preflight's Jobs in System.
	Preflight bool
	// Timeout bounds each request; 0: DefaultTimeout.
	Timeout time.Duration
}

const (
	// DefaultTimeout bounds a request. A page of 500 ResourceSlices takes an idle API server 0.2 s.
	DefaultTimeout = 10 * time.Second
	// DefaultSystem is where the chart's documentation installs gpufabric.
	DefaultSystem = "gpufabric-system"
	// PreflightJobs is the label app.kubernetes.io/name of the pods of preflight's Jobs. It differs from that of gpufabric's own pods,
	// whose logs and readiness are checked.
	PreflightJobs = "gpufabric-preflight"

	// pageSize is the number of objects in a request.
	pageSize = 500
	// maxPages bounds the requests of a kind: 10,000 waiting pods are 20 pages.
	maxPages = 24
	// atOnce is how many kinds are read concurrently.
	atOnce = 6
)

// namespaces are where namespaced kinds are read when reading all namespaces is not allowed.
func (s Scope) namespaces() []string {
	var out []string
	for _, n := range []string{s.Namespace, s.System} {
		if n != "" && (len(out) == 0 || out[0] != n) {
			out = append(out, n)
		}
	}
	return out
}
