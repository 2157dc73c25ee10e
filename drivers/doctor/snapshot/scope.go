package snapshot

import "time"

// Scope says what is asked about, which bounds what is read.
type Scope struct {
	// Namespace is that of the object that is asked about; empty: none.
	Namespace string
	// Pod is the pod that is asked about; empty: none.
	Pod string
	// System is gpufabric's namespace, which is read where all namespaces may not be.
	System string
	// Preflight bounds the reading to what an install depends on, and adds the pods of preflight's Jobs in System.
	Preflight bool
	// Timeout bounds each request; 0: DefaultTimeout.
	Timeout time.Duration
}

const (
	// DefaultTimeout bounds a request. A page of 500 ResourceSlices takes an idle API server 0.2 s.
	DefaultTimeout = 10 * time.Second
	// DefaultSystem is where the chart's documentation installs gpufabric.
	DefaultSystem = "gpufabric-system"
	// PreflightJobs is the label app.kubernetes.io/name of the pods of preflight's Jobs. It is not that of gpufabric's own pods, whose logs
	// and whose readiness are looked at.
	PreflightJobs = "gpufabric-preflight"

	// pageSize is how many objects a request asks for.
	pageSize = 500
	// maxPages bounds the requests of a kind: 10,000 pods that wait are 20 pages.
	maxPages = 24
	// atOnce is how many kinds are read at the same time.
	atOnce = 6
)

// namespaces are where namespaced kinds are read when they may not be read everywhere.
func (s Scope) namespaces() []string {
	var out []string
	for _, n := range []string{s.Namespace, s.System} {
		if n != "" && (len(out) == 0 || out[0] != n) {
			out = append(out, n)
		}
	}
	return out
}
