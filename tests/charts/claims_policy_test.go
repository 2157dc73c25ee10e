package charts

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

var (
	claimResource         = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}
	claimTemplateResource = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaimtemplates"}
)

// domainsStay tries claims that would take a node's one IMEX daemon, or its channel, and be refused when they are prepared: by then no
// domain forms there.
func domainsStay(t *testing.T, live *server) {
	const (
		daemon  = `{"name": "d", "exactly": {"deviceClassName": "compute-domain-daemon.nvidia.com"}}`
		channel = `{"name": "c", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}`
		gpu     = `{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}`
		opaque  = `"opaque": {"driver": "compute-domain.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": ` +
			`"ComputeDomainChannelConfig", "domainID": "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"}}`
		taken = "the class compute-domain-daemon.nvidia.com is for the IMEX daemons that gpufabric runs in namespace " + namespace
		bare  = "requests c ask for the class compute-domain-default-channel.nvidia.com without saying of which compute domain"
	)
	create := func(space, devices string, template bool) error {
		kind, resource, spec := "ResourceClaim", claimResource, `{"devices": `+devices+`}`
		if template {
			kind, resource, spec = "ResourceClaimTemplate", claimTemplateResource, `{"spec": `+spec+`}`
		}
		one := object(`{"apiVersion": "resource.k8s.io/v1", "kind": "` + kind + `", "metadata": {"name": "tried", "namespace": "` + space +
			`"}, "spec": ` + spec + `}`)
		_, err := live.client.Resource(resource).Namespace(space).Create(t.Context(), one,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	space := object(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}}`)
	if _, err := live.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(), space,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	live.awaitPolicies(t, "anybody", func(context.Context, dynamic.Interface) error {
		return create("tenant", `{"requests": [`+daemon+`]}`, false)
	})
	for name, test := range map[string]struct{ space, devices, refused string }{
		"a tenant's daemon":     {"tenant", `{"requests": [` + daemon + `]}`, taken},
		"a daemon behind a GPU": {"tenant", `{"requests": [` + gpu + `, ` + daemon + `]}`, taken},
		"a daemon as second choice": {"tenant",
			`{"requests": [{"name": "d", "firstAvailable": [{"name": "g", "deviceClassName": "gpu.nvidia.com"}, {"name": "x", "deviceClassName": ` +
				`"compute-domain-daemon.nvidia.com"}]}]}`, taken},
		"our daemon":             {namespace, `{"requests": [` + daemon + `]}`, ""},
		"a channel of no domain": {"tenant", `{"requests": [` + channel + `]}`, bare},
		"a channel of another's config": {"tenant", `{"requests": [` + channel + `, ` + gpu + `], "config": [{"requests": ["g"], ` + opaque +
			`}]}`, bare},
		"a channel as only choice": {"tenant",
			`{"requests": [{"name": "c", "firstAvailable": [{"name": "x", "deviceClassName": "compute-domain-default-channel.nvidia.com"}]}]}`,
			bare},
		"a channel of a domain":         {"tenant", `{"requests": [` + channel + `], "config": [{"requests": ["c"], ` + opaque + `}]}`, ""},
		"a channel by a config for all": {"tenant", `{"requests": [` + gpu + `, ` + channel + `], "config": [{` + opaque + `}]}`, ""},
		"a choice with a domain": {"tenant",
			`{"requests": [{"name": "c", "firstAvailable": [{"name": "x", "deviceClassName": "compute-domain-default-channel.nvidia.com"}]}], ` +
				`"config": [{"requests": ["c/x"], ` + opaque + `}]}`, ""},
		"a GPU":                           {"tenant", `{"requests": [` + gpu + `]}`, ""},
		"a claim that asks for no device": {"tenant", `{}`, ""},
	} {
		for _, template := range []bool{false, true} {
			err := create(test.space, test.devices, template)
			if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("%s (in a template: %v): got %v, want an error with %q", name, template, err, test.refused)
			}
		}
	}
}
