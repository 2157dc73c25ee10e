package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// testRefusals sends the API server invalid domains.
func testRefusals(t *testing.T, e *environment) {
	const domain = `{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: bad},
		spec: {numNodes: %d, channel: {resourceClaimTemplate: {name: %q}}}}`
	tests := map[string]struct{ manifest, field string }{
		"a negative number of nodes":   {fmt.Sprintf(domain, -1, "bad-channel"), "spec.numNodes"},
		"an empty claim template name": {fmt.Sprintf(domain, 1, ""), "spec.channel.resourceClaimTemplate.name"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if said := e.refused(t, test.manifest); !strings.Contains(said, test.field) {
				t.Errorf("refused without naming %s: %s", test.field, said)
			}
		})
	}
}

// testForeignNamespace lets a tenant claim a channel of a domain in another namespace.
func testForeignNamespace(t *testing.T, e *environment) {
	const tenant = "other-tenant"
	uid := e.domain(t, "quickstart").Metadata.UID
	e.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+tenant+"}}")
	e.kubectl(t, "--namespace", tenant, "wait", "serviceaccount/default", "--for=create", inTime)
	e.apply(t, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: stolen, namespace: %[1]s}
spec:
  devices:
    requests:
    - name: channel
      exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}
    config:
    - requests: [channel]
      opaque:
        driver: compute-domain.nvidia.com
        parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomainChannelConfig, domainID: %[2]s}
---
apiVersion: v1
kind: Pod
metadata: {name: thief, namespace: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[3]s}
  terminationGracePeriodSeconds: 1
  containers: [{name: thief, image: "ubuntu:22.04", command: [sleep, "9999"], resources: {claims: [{name: channel}]}}]
  resourceClaims: [{name: channel, resourceClaimName: stolen}]
`, tenant, uid, e.Workers()[0]))

	const reason = "NotInDomainNamespace"
	for what, args := range map[string][]string{
		"an Event on the claim": {"get", "events", "--field-selector", "involvedObject.kind=ResourceClaim", "--output",
			`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`},
		"an Event on the pod": {"get", "events", "--field-selector", "involvedObject.kind=Pod", "--output",
			`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`},
		"the claim's status": {"get", "resourceclaim/stolen", "--output", "jsonpath={.status.devices}"},
	} {
		e.eventually(t, what+" to say why there is no channel", func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, append([]string{"--namespace", tenant}, args...)...)
			return strings.Contains(out, reason) && strings.Contains(out, uid), out, err
		})
	}
	if phase := e.kubectl(t, "--namespace", tenant, "get", "pod/thief", "--output", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("the pod is %s, want it to wait", phase)
	}
	// Most important: the refused claim has no CDI file.
	if traces, err := e.traces(t.Context(), e.kubectl(t, "--namespace", tenant, "get", "resourceclaim/stolen", "--output",
		"jsonpath={.metadata.uid}")); err != nil {
		t.Error(err)
	} else {
		for _, trace := range traces {
			if strings.Contains(trace, "cdi") {
				t.Errorf("the refused claim has a CDI file: %s", trace)
			}
		}
	}
}
