package provider

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/object"
)

// readyCondition is the condition Ready with a status, as a controller writes it.
func readyCondition(status string) map[string]any {
	return map[string]any{"type": "Ready", "status": status, "reason": "Test", "message": "as the test says",
		"lastTransitionTime": "2026-01-01T00:00:00Z"}
}

// testTimeouts creates an object of each kind with a wait that never becomes ready: it is kept untainted, and the next apply goes on
// waiting, and names the node and the reason. The waits run beside each other.
//
// A kind that is not installed is waited for too, and named with its CRD.
func testTimeouts(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	for _, kind := range []object.Kind{rdmaPoolKind, migLayoutKind} { // not that of vGPU profiles
		installCRD(t, s, filepath.Join(repository, "drivers/api/crds", kind.Group+"_"+kind.Plural+".yaml"))
	}
	s.ServeDomains(t, func(string) apiserver.Domain {
		return apiserver.Domain{Status: "NotReady", Message: "IMEX ready on 1 of 2 nodes",
			Nodes: []map[string]any{domainNode("a", "Ready", 0), domainNode("b", "NotReady", 1)}}
	})
	status := func(obj *unstructured.Unstructured, node map[string]any) map[string]any {
		node["observedGeneration"] = obj.GetGeneration()
		return map[string]any{"observedGeneration": obj.GetGeneration(), "nodes": []any{node}, "conditions": []any{readyCondition("False")}}
	}
	s.Serve(t, rdmaPoolKind.GVR(), func(obj *unstructured.Unstructured) map[string]any {
		all := status(obj, map[string]any{"name": "a", "devices": int64(2), "healthyDevices": int64(0), "units": int64(64),
			"message": "mlx5_0: port 1 is DOWN"})
		all["resource"], all["healthyDevices"] = "rdma/x", int64(0)
		return all
	})
	s.Serve(t, migLayoutKind.GVR(), func(obj *unstructured.Unstructured) map[string]any {
		return status(obj, map[string]any{"name": "rack-0", "state": "Waiting", "message": "claim team/train holds gpu-1"})
	})
	const short = "\ntimeouts = { create = \"15s\", update = \"15s\" }"
	t.Run("a kind that is not installed is named with its CRD", func(t *testing.T) {
		t.Parallel()
		check(t, resource.TestStep{Config: profile(s, "nowhere", "mode = \"Exclusive\"\ntimeouts = { create = \"15s\" }"),
			ExpectError: words("CustomResourceDefinition vgpuprofiles.gpufabric.io")})
	})
	for _, test := range []struct {
		name, config, address string
		want                  *regexp.Regexp
	}{
		{"a domain names the node", domainConfig(s, "slow", "num_nodes = 2\nwait_for = \"ready\""+short), domainAddress,
			regexp.MustCompile(`(?s)1 of 2 nodes ready;\s+waiting\s+for\s+b`)},
		{"a pool names node and port", pool(s, "port-down", "resource_name = \"a\"\ndevices = [\"ib0\"]\nwait_for = \"ready\""+short),
			poolAddress, words("a has 0 of 2 devices healthy (mlx5_0: port 1 is DOWN)")},
		{"a layout names node and claim", layout(s, "busy", mixed+short), layoutAddress,
			words("rack-0 is waiting: claim team/train holds gpu-1")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // all of it is waiting
			check(t, resource.TestStep{Config: test.config, ExpectNonEmptyPlan: true,
				Check: resource.TestCheckResourceAttr(test.address, "ready", "false")},
				resource.TestStep{Config: test.config, ConfigPlanChecks: updates(test.address), ExpectError: test.want})
		})
	}
}
