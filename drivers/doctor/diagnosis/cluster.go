package diagnosis

import (
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"gpufabric.io/drivers/doctor/snapshot"
)

const (
	// needed is the oldest Kubernetes version that serves resource.k8s.io/v1 by default (the chart's kubeVersion).
	needed = "1.34.0"
	// maxSkew is how far a node's clock may differ from the API server's. Service accounts' tokens have no tolerance for a clock that
	// is ahead, and a kubelet renews its lease every 10 s.
	maxSkew = 30 * time.Second
	// maxSilence is when Kubernetes calls a node's lease expired (node-monitor-grace-period).
	maxSilence = 50 * time.Second
)

// server checks the API server itself.
func (e *examination) server() {
	from := "the API server's /version"
	if tooOld(e.Server.Version) {
		e.find("KubernetesTooOld", "API server", from, "the API server is %s, and gpufabric needs %s", e.Server.Version, needed)
	}
	if len(e.Server.Groups) > 0 && !e.Server.Serves("resource.k8s.io/v1") {
		e.find("DynamicResourcesOff", "API server", "the API server's /apis", "the API server does not serve resource.k8s.io/v1")
	}
	if e.Server.Throttled > 0 {
		e.find("APIServerThrottles", "API server", "answers with status 429",
			"the API server refused %d of the %d requests of this command as too many", e.Server.Throttled, e.Server.Requests)
	}
	silent := 0
	for _, u := range e.Unread {
		if u.Why == snapshot.Silent {
			silent++
		}
	}
	if silent > 0 {
		e.find("APIServerSilent", "API server", "requests that timed out", "%d kinds of objects were not listed in time", silent)
	}
}

// tooOld reports whether a version is known and older than needed. A version that cannot be parsed does not count.
func tooOld(text string) bool {
	v, err := version.ParseGeneric(text)
	return err == nil && v.LessThan(version.MustParseGeneric(needed))
}
