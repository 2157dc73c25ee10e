package provider

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
)

const networkAddress = "gpufabric_secondary_network.test"

func testSecondaryNetwork(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, "testdata/network-attachment-definitions.yaml")
	network := func(more string) string {
		return as(s) + fmt.Sprintf("resource \"gpufabric_secondary_network\" \"test\" {\n  name = \"rail\"\n%s\n}\n", more)
	}
	t.Run("becomes a NetworkAttachmentDefinition, is changed in place and imported", func(t *testing.T) {
		check(
			t,
			resource.TestStep{
				Config: network(
					"type = \"macvlan\"\nmaster = \"ens2f0\"\nmode = \"bridge\"\nmtu = 9000\nresource_name = \"rdma/a\"\nannotations = { note = \"x\" " +
						"}\nipam = { range = \"10.56.0.0/16\", exclude = [\"10.56.0.0/28\"] }",
				),
				Check: func(*terraform.State) error {
					obj, err := s.Dynamic.Resource(networkKind.GVR()).Namespace("default").Get(t.Context(), "rail", metav1.GetOptions{})
					must(t, err)
					config, _, _ := unstructured.NestedString(obj.Object, "spec", "config")
					want := `{"cniVersion":"0.3.1","name":"rail","type":"macvlan","master":"ens2f0","mode":"bridge","mtu":9000,` +
						`"ipam":{"type":"whereabouts","range":"10.56.0.0/16","exclude":["10.56.0.0/28"]}}`
					if config != want {
						t.Errorf("config:\n got %s\nwant %s", config, want)
					}
					if got := obj.GetAnnotations()["k8s.v1.cni.cncf.io/resourceName"]; got != "rdma/a" {
						t.Errorf("resource annotation: got %q", got)
					}
					return nil
				}},
			resource.TestStep{ResourceName: networkAddress, ImportState: true, ImportStateVerify: true},
			resource.TestStep{
				Config:           network("type = \"ipoib\"\nmaster = \"ib0\""),
				ConfigPlanChecks: updates(networkAddress),
				Check:            resource.TestCheckNoResourceAttr(networkAddress, "mtu"),
			},
		)
	})
	t.Run("leaves its gateway out of the addresses of pods", func(t *testing.T) {
		config := network("type = \"ipoib\"\nmaster = \"ib0\"\nipam = { range = \"10.56.0.0/16\", gateway = \"10.56.0.1\", exclude = " +
			"[\"10.56.1.0/28\"] }")
		check(t, resource.TestStep{Config: config, Check: func(*terraform.State) error {
			obj, err := s.Dynamic.Resource(networkKind.GVR()).Namespace("default").Get(t.Context(), "rail", metav1.GetOptions{})
			must(t, err)
			text, _, _ := unstructured.NestedString(obj.Object, "spec", "config")
			if want := `"gateway":"10.56.0.1","exclude":["10.56.1.0/28","10.56.0.1/32"]`; !strings.Contains(text, want) {
				t.Errorf("config %s, want %s in it", text, want)
			}
			return nil
		}}, resource.TestStep{Config: config, PlanOnly: true},
			resource.TestStep{ResourceName: networkAddress, ImportState: true, ImportStateVerify: true})
	})
	t.Run("keeps an empty map of annotations empty", func(t *testing.T) {
		config := network("type = \"ipoib\"\nmaster = \"ib0\"\nannotations = {}\nresource_name = \"rdma/a\"")
		check(t, resource.TestStep{Config: config, Check: resource.TestCheckResourceAttr(networkAddress, "annotations.%", "0")},
			resource.TestStep{Config: config, PlanOnly: true})
	})
}

func TestIPAMExcludesGatewayOnce(t *testing.T) {
	for _, test := range []struct {
		name    string
		ipam    cniIPAM
		written []string
	}{
		{"no gateway", cniIPAM{Exclude: []string{"10.0.0.0/28"}}, []string{"10.0.0.0/28"}},
		{"a gateway", cniIPAM{Gateway: "10.0.0.1"}, []string{"10.0.0.1/32"}},
		{"a gateway of IPv6", cniIPAM{Gateway: "fd00::1"}, []string{"fd00::1/128"}},
		{"an excluded gateway", cniIPAM{Gateway: "10.0.0.1", Exclude: []string{"10.0.0.0/28"}}, []string{"10.0.0.0/28"}},
		{"a gateway that is excluded by itself", cniIPAM{Gateway: "10.0.0.1", Exclude: []string{"10.0.0.1/32"}}, []string{"10.0.0.1/32"}},
	} {
		configured := test.ipam.Exclude
		test.ipam.leaveOutGateway()
		if !slices.Equal(test.ipam.Exclude, test.written) {
			t.Errorf("%s: written %v, want %v", test.name, test.ipam.Exclude, test.written)
		}
		if got := test.ipam.configuredExclude(configured); !slices.Equal(got, configured) {
			t.Errorf("%s: read back %v, want %v", test.name, got, configured)
		}
	}
}
