package charts

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// olderVersions tries what is refused in resource.k8s.io/v1 through the versions that a server can serve beside it.
func olderVersions(t *testing.T, live *server) []way {
	t.Helper()
	const (
		taken = "the class compute-domain-daemon.nvidia.com is for the IMEX daemons"
		bare  = "without saying of which compute domain"
		away  = `failed calling webhook "`
		group = "resource.k8s.io/"
	)
	plugin, controller := live.as(t, "gpufabric-gpu-plugin", "node-a"), live.as(t, "gpufabric-controller", "node-a")
	claim := func(version, kind, name, devices string) string {
		spec := `{"devices": ` + devices + `}`
		if kind == "ResourceClaimTemplate" {
			spec = `{"spec": ` + spec + `}`
		}
		return `{"apiVersion": "` + group + version + `", "kind": "` + kind + `", "metadata": {"name": "` + name +
			`", "namespace": "tenant"}, "spec": ` + spec + `}`
	}
	var out []way
	shares := live.keepsShares(t)
	for _, version := range []string{"v1", "v1beta2", "v1beta1"} {
		request := func(class, more string) string {
			body := `"deviceClassName": "` + class + `"` + more
			if version != "v1beta1" {
				body = `"exactly": {` + body + `}`
			}
			return `{"name": "r", ` + body + `}`
		}
		const configured = `, "config": [{"requests": ["r"], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"apiVersion":
			"resource.nvidia.com/v1beta1", "kind": "GpuConfig"}}}]`
		for _, kind := range []string{"ResourceClaim", "ResourceClaimTemplate"} {
			hook := strings.ToLower(strings.NewReplacer("ResourceClaimTemplate", "claim-templates", "ResourceClaim", "claims").Replace(kind))
			for _, one := range []struct{ name, devices, refused string }{
				{"a daemon", `{"requests": [` + request("compute-domain-daemon.nvidia.com", "") + `]}`, taken},
				{"a daemon as second choice", `{"requests": [{"name": "d", "firstAvailable": [{"name": "g", "deviceClassName": "gpu.nvidia.com"},
					{"name": "x", "deviceClassName": "compute-domain-daemon.nvidia.com"}]}]}`, taken},
				{"a channel of no domain", `{"requests": [` + request("compute-domain-default-channel.nvidia.com", "") + `]}`, bare},
				{"a configuration of ours", `{"requests": [` + request("gpu.nvidia.com", "") + `]` + configured + `}`, away + hook},
				{"a GPU", `{"requests": [` + request("gpu.nvidia.com", "") + `]}`, ""},
			} {
				out = append(out, way{fmt.Sprintf("%s in a %s of %s", one.name, kind, version), live.client, makes(claim(version, kind, "tried",
					one.devices)), one.refused})
			}
		}
		out = append(out, way{"a configuration in a DeviceClass of " + version, live.client, makes(`{"apiVersion": "` + group + version +
			`", "kind": "DeviceClass", "metadata": {"name": "tried"}, "spec": {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters":
			{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}}}]}}`), away + "device-classes"})
		out = append(out, olderAllocations(t, live, shares, version, claim(version, "ResourceClaim", "claim-"+version,
			`{"requests": [`+request("gpu.nvidia.com", "")+`]}`))...)

		// With the tokens of roles.
		older := func(body string) string { return strings.Replace(body, group+"v1", group+version, 1) }
		template := func(metadata, request string) string {
			return `{"apiVersion": "` + group + version + `", "kind": "ResourceClaimTemplate", "metadata": {"name": "tried", "namespace":
				"tenant"` + metadata + `}, "spec": {"spec": {"devices": {"requests": [` + request + `]}}}}`
		}
		const ofDomain = `, "labels": {"resource.nvidia.com/computeDomain": "uid"}`
		const ofProfile = `, "ownerReferences": [{"apiVersion": "gpufabric.io/v1alpha1", "kind": "VGPUProfile", "name": "tried", "uid": "u",
			"controller": true}]`
		slices := resourceOf("resource.k8s.io", version, "resourceslices")
		out = append(out,
			way{"another node's slice in " + version, plugin, makes(older(text(slice("tried", `"nodeName": "node-b"`, "gpu.nvidia.com",
				"node-b-gpu")))), "may write ResourceSlices of that node only, not of node-b"},
			way{"another driver's slice in " + version, plugin, makes(older(text(slice("tried", `"nodeName": "node-a"`, "dra.net",
				"node-a-gpu")))), "not of dra.net"},
			way{"deleting another node's slice through " + version, plugin, remove(slices, "", "of-node-b"), "not of node-b"},
			way{"its own slice in " + version, plugin, makes(older(text(slice("tried", `"nodeName": "node-a"`, "gpu.nvidia.com",
				"node-a-gpu")))), ""},
			way{"a tenant's template in " + version, controller, makes(template("", request("gpu.nvidia.com", ""))), "tenant/tried is of none"},
			way{"a domain's template for GPUs in " + version, controller, makes(template(ofDomain, request("gpu.nvidia.com", ""))),
				"a template of the controller asks for one device"},
			way{"a profile's template with access to all in " + version, controller, makes(template(ofProfile, request("tried",
				`, "adminAccess": true`))), "a template of the controller asks for one device"},
			way{"a class of nobody's in " + version, controller, makes(`{"apiVersion": "` + group + version + `", "kind": "DeviceClass",
				"metadata": {"name": "tried"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}`),
				"the controller may write the DeviceClasses"},
		)
	}
	return out
}

// olderAllocations has the scheduler allocate through an older version, and a plugin write another node's part of a status.
func olderAllocations(t *testing.T, live *server, shares bool, version, body string) []way {
	t.Helper()
	one := object(body)
	if _, err := live.client.Resource(resourceOfKind(one)).Namespace("tenant").Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claims, name := resourceOf("resource.k8s.io", version, "resourceclaims"), one.GetName()
	allocate := func(driver, pool, device, config string) attempt {
		return patch(claims, "tenant", name, `{"status": {"allocation": {"devices": {"results": [{"request": "r", "driver": "`+driver+
			`", "pool": "`+pool+`", `+device+`}], "config": [`+config+`]}}}}`, "status")
	}
	const (
		domains = "compute-domain.nvidia.com"
		share   = `"device": "gpu-0", "shareID": "3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10"`
		long    = `{"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1",
			"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}}}`
	)
	plugin := live.as(t, "gpufabric-gpu-plugin", "node-a")
	out := []way{
		{"the allocation of a daemon through " + version, live.client, allocate(domains, "node-a-compute-domain", `"device": "daemon-0"`, ""),
			"which is for the IMEX daemons"},
		{"the allocation of a channel through " + version, live.client, allocate(domains, "node-a-compute-domain", `"device": "channel-0"`, ""),
			"without saying for which compute domain"},
		{"a plugin allocates through " + version, plugin, allocate("gpu.nvidia.com", "node-a-gpu", share, ""),
			"may write the status of claims that have a device of pool node-a-gpu only"},
	}
	if !shares { // the server drops shareID: no claim has a share
		return out
	}
	return append(out, way{"the allocation of a share with a time slice through " + version, live.client,
		allocate("gpu.nvidia.com", "node-a-gpu", share, long), "would take a share of a GPU (gpu-0 of node-a-gpu) and choose its time slice"},
		way{"the allocation of a share through " + version, live.client, allocate("gpu.nvidia.com", "node-a-gpu", share, ""), ""})
}
