package charts

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

var (
	claimResource         = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}
	claimTemplateResource = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaimtemplates"}
)

// allocationsStay has the scheduler allocate the devices of compute domains to claims that do not use our classes. Such a claim
// can get a device that it does not name.
func allocationsStay(t *testing.T, live *server) {
	const opaque = `"opaque": {"driver": "compute-domain.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": ` +
		`"ComputeDomainChannelConfig", "domainID": "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"}}`
	const daemon, channel = `"pool": "node-a-compute-domain", "device": "daemon-0"`, `"pool": "node-a-compute-domain", "device": "channel-0"`
	const taken = "would take daemon-0 of node-a-compute-domain, which is for the IMEX daemons that gpufabric runs in namespace " + namespace
	const bare = "would take channel-0 of node-a-compute-domain without saying for which compute domain"
	class := object(`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "anything"},
		"spec": {"extendedResourceName":
		"example.com/anything", "selectors": [{"cel": {"expression": "device.driver.endsWith('nvidia.com')"}}]}}`)
	if _, err := live.client.Resource(classResource).Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const anything = `"exactly": {"deviceClassName": "anything"`
	number := 0
	for _, test := range []struct{ name, space, request, config, result, refused string }{
		{"a daemon by another class", "tenant", anything + `}`, "", daemon, taken},
		{"a daemon by a selector of the claim's own", "tenant",
			anything + `, "selectors": [{"cel": {"expression": "device.driver == 'compute-domain.nvidia.com'"}}]}`, "", daemon, taken},
		{"a daemon as second choice", "tenant",
			`"firstAvailable": [{"name": "s", "deviceClassName": "anything"}]`, "", daemon, taken},
		{"a daemon with a channel's configuration", "tenant", anything + `}`, `{` + opaque + `}`, daemon, taken},
		{"a daemon with an administrator's access", "admins", anything + `, "adminAccess": true}`, "", daemon + `, "adminAccess": true`, taken},
		{"a channel by another class", "tenant", anything + `}`, "", channel, bare},
		{"a channel whose configuration is another request's", "tenant",
			anything + `}`, `{"requests": ["other"], ` + opaque + `}`, channel, bare},
		{"a channel of a domain", "tenant", anything + `}`, `{"requests": ["r"], ` + opaque + `}`, channel, ""},
		{"our daemon", namespace, anything + `}`, "", daemon, ""},
		{"another driver's device", "tenant", anything + `}`, "", `"pool": "p", "device": "daemon-0"`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			number++
			name, driver, request := fmt.Sprintf("claim-%d", number), "compute-domain.nvidia.com", "r"
			if strings.Contains(test.result, `"pool": "p"`) {
				driver = "dra.net"
			}
			if strings.Contains(test.request, "firstAvailable") {
				request = "r/s"
			}
			claims := live.client.Resource(claimResource).Namespace(test.space)
			claim := object(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "` + name + `", "namespace": "` +
				test.space + `"}, "spec": {"devices": {"requests": [{"name": "r", ` + test.request + `}, {"name": "other", "exactly":
				{"deviceClassName": "anything"}}], "config": [` + test.config + `]}}}`)
			if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			config := test.config
			if config != "" {
				config = `{"source": "FromClaim", ` + config[1:]
			}
			_, err := claims.Patch(t.Context(), name, "application/merge-patch+json", []byte(`{"status": {"allocation": {"devices": {"results": [
				{"request": "`+request+`", "driver": "`+driver+`", `+test.result+`}], "config": [`+config+`]}}}}`), metav1.PatchOptions{}, "status")
			if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("got %v, want an error with %q", err, test.refused)
			}
		})
	}
}

// domainsStay tries claims that would take a node's only IMEX daemon, or its channel. The plugin would refuse them, but only in
// prepare, when they already keep a domain from forming there.
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
	admins := object(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "admins", "labels": {
		"resource.kubernetes.io/admin-access": "true"}}}`)
	for _, one := range []*unstructured.Unstructured{space, admins} {
		if _, err := live.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(), one,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
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

// keepsShares reports whether the server keeps that an allocated device is a share.
func (s *server) keepsShares(t *testing.T) bool {
	t.Helper()
	claims := s.client.Resource(claimResource).Namespace("default")
	claim := object(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "keeps-shares"}, "spec": {"devices":
		{"requests": [{"name": "r", "exactly": {"deviceClassName": "teams-own"}}]}}}`)
	if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept, err := claims.Patch(t.Context(), claim.GetName(), types.MergePatchType, []byte(`{"status": {"allocation": {"devices": {"results": [
		{"request": "r", "driver": "dra.net", "pool": "p", "device": "d", "shareID": "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"}]}}}}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
	if err != nil {
		t.Fatal(err)
	}
	results, _, err := unstructured.NestedSlice(kept.Object, "status", "allocation", "devices", "results")
	if err != nil || len(results) != 1 {
		t.Fatalf("allocated are %v: %v", results, err)
	}
	return results[0].(map[string]any)["shareID"] != nil
}

// timeSlicesStay has the scheduler allocate shares of GPUs whose claims choose the GPU's time slice. The class is of another name than the
// chart's, so that the claim does not show a share when it is written.
func timeSlicesStay(t *testing.T, live *server) {
	config := func(source, requests, driver, sharing string) string {
		return `{"source": "` + source + `", "requests": [` + requests + `], "opaque": {"driver": "` + driver + `", "parameters": ` +
			`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": ` + sharing + `}}}`
	}
	const (
		long  = `{"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}`
		gpus  = "gpu.nvidia.com"
		share = `"device": "gpu-0", "shareID": "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"`
		whole = `"device": "gpu-0"`
		words = "would take a share of a GPU (gpu-0 of node-a-gpu) and choose its time slice"
	)
	allocate := func(name, request, driver, device, config string) error {
		claims := live.client.Resource(claimResource).Namespace("default")
		claim := object(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "` + name + `"}, "spec": {"devices":
			{"requests": [{"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "teams-own"}]}, {"name": "q", "exactly":
			{"deviceClassName": "teams-own"}}]}}}`)
		if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := claims.Patch(t.Context(), name, "application/merge-patch+json", []byte(`{"status": {"allocation": {"devices": {"results": [
			{"request": "`+request+`", "driver": "`+driver+`", "pool": "node-a-gpu", `+device+`}], "config": [`+config+`]}}}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	if !live.keepsShares(t) {
		t.Skip("skipped: the API server drops shareID (its gate DRAConsumableCapacity is off), so that no claim has a share")
	}
	tries := 0
	live.awaitPolicies(t, "anybody", func(context.Context, dynamic.Interface) error {
		tries++
		return allocate(fmt.Sprintf("awaits-%d", tries), "q", gpus, share, config("FromClaim", "", gpus, long))
	})
	for i, test := range []struct {
		name, request, driver, device, config string
		refused                               bool
	}{
		{"for every request", "q", gpus, share, config("FromClaim", "", gpus, long), true},
		{"for the request", "q", gpus, share, config("FromClaim", `"q"`, gpus, long), true},
		{"for a request of which one alternative was had", "r/s", gpus, share, config("FromClaim", `"r"`, gpus, long), true},
		{"for one alternative", "r/s", gpus, share, config("FromClaim", `"r/s"`, gpus, long), true},
		{"behind a configuration without one", "q", gpus, share, config("FromClaim", "", gpus, `{"strategy": "TimeSlicing"}`) + ", " +
			config("FromClaim", "", gpus, long), true},
		{"by its class", "q", gpus, share, config("FromClass", "", gpus, long), false},
		{"for another request", "q", gpus, share, config("FromClaim", `"r"`, gpus, long), false},
		{"of a whole GPU", "q", gpus, whole, config("FromClaim", "", gpus, long), false},
		{"of another driver", "q", "dra.net", share, config("FromClaim", "", "dra.net", long), false},
		{"that is null", "q", gpus, share, config("FromClaim", "", gpus, `{"timeSlicingConfig": {"interval": null}}`), false},
		{"in settings that are null", "q", gpus, share, config("FromClaim", "", gpus, `{"timeSlicingConfig": null}`), false},
		{"in sharing that is null", "q", gpus, share, config("FromClaim", "", gpus, `null`), false},
	} {
		err := allocate(fmt.Sprintf("share-%d", i), test.request, test.driver, test.device, test.config)
		if !test.refused && err != nil || test.refused && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("a time slice %s: got %v, refused should be %t", test.name, err, test.refused)
		}
		if test.refused {
			t.Logf("attacker sees: %v", err)
		}
	}
}
