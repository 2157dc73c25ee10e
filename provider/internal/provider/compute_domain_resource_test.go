package provider

import (
	"fmt"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpufabric.io/provider/internal/apiserver"
)

var (
	customResourceDefinitions = schema.GroupVersionResource{
		Group:    "apiextensions.k8s.io",
		Version:  "v1",
		Resource: "customresourcedefinitions",
	}
	computeDomains = computeDomainKind.GVR()
)

const domainAddress = "gpufabric_compute_domain.test"

func domainConfig(s *apiserver.Server, name, more string) string {
	return as(
		s,
	) + fmt.Sprintf(
		"resource \"gpufabric_compute_domain\" \"test\" {\n  name = %q\n  channel = { resource_claim_template = \"%s-channel\" }\n%s\n}\n",
		name,
		name,
		more,
	)
}

// domainNode is a node in the status of a domain.
func domainNode(name, status string, index int64) map[string]any {
	return map[string]any{
		"name":      name,
		"ipAddress": "10.0.0.1",
		"cliqueID":  "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766",
		"index":     index,
		"status":    status,
	}
}

func testComputeDomain(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	s.ServeDomains(t, func(name string) apiserver.Domain {
		switch name {
		case "ready":
			return apiserver.Domain{
				Status:  "Ready",
				Message: "2 of 2 nodes ready",
				Nodes:   []map[string]any{domainNode("a", "Ready", 0), domainNode("b", "Ready", 1)},
			}
		case "ignored":
			return apiserver.Domain{}
		}
		return apiserver.Domain{
			Status:  "NotReady",
			Message: "IMEX ready on 1 of 2 nodes",
			Nodes:   []map[string]any{domainNode("a", "Ready", 0), domainNode("b", "NotReady", 1)},
		}
	})
	t.Run("becomes Ready with its nodes in the state, and can be imported", func(t *testing.T) {
		check(t, resource.TestStep{
			Config: domainConfig(s, "ready", "num_nodes = 2\nwait_for = \"ready\""),
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(domainAddress, "id", "default/ready"),
				resource.TestCheckResourceAttr(domainAddress, "ready", "true"),
				resource.TestCheckResourceAttr(domainAddress, "nodes.1.name", "b"),
				resource.TestCheckResourceAttr(domainAddress, "nodes.1.index", "1"),
				resource.TestCheckResourceAttr(domainAddress, "nodes.0.clique_id", "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"),
			),
		}, resource.TestStep{
			ResourceName: domainAddress, ImportState: true, ImportStateVerify: true, ImportStateVerifyIgnore: []string{"wait_for"},
		})
	})
	t.Run("is accepted without being Ready, so that its workload can follow", func(t *testing.T) {
		check(t, resource.TestStep{
			Config: domainConfig(s, "waiting", "num_nodes = 2"),
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(domainAddress, "accepted", "true"), resource.TestCheckResourceAttr(domainAddress, "ready", "false"),
				resource.TestCheckResourceAttr(domainAddress, "message", "IMEX ready on 1 of 2 nodes")),
		})
	})
	t.Run("is replaced when its spec changes and changed in place when its labels do", func(t *testing.T) {
		check(t, resource.TestStep{Config: domainConfig(s, "ready", "num_nodes = 2")},
			resource.TestStep{
				Config: domainConfig(s, "ready", "num_nodes = 2\nlabels = { team = \"a\" }"),
				ConfigPlanChecks: resource.ConfigPlanChecks{
					PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(domainAddress, plancheck.ResourceActionUpdate)},
				},
			},
			resource.TestStep{
				Config: domainConfig(s, "ready", "num_nodes = 2"),
				ConfigPlanChecks: resource.ConfigPlanChecks{
					PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(domainAddress, plancheck.ResourceActionUpdate)},
				},
				Check: resource.TestCheckNoResourceAttr(domainAddress, "labels.team"),
			},
			resource.TestStep{
				Config: domainConfig(s, "ready", "num_nodes = 1"),
				ConfigPlanChecks: resource.ConfigPlanChecks{
					PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(domainAddress, plancheck.ResourceActionReplace)},
				},
			})
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
