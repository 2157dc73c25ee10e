package provider

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
)

func profile(s *apiserver.Server, name, more string) string {
	return as(s) + fmt.Sprintf("resource \"gpufabric_vgpu_profile\" \"test\" {\n  name = %q\n%s\n}\n", name, more)
}

func layout(s *apiserver.Server, name, more string) string {
	return as(s) + fmt.Sprintf("resource \"gpufabric_mig_layout\" \"test\" {\n  name = %q\n%s\n}\n", name, more)
}

const (
	profileAddress = "gpufabric_vgpu_profile.test"
	layoutAddress  = "gpufabric_mig_layout.test"
)

func updates(address string) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate)}}
}

func testVGPUProfile(t *testing.T, s *apiserver.Server) {
	publishRack(t, s)
	installCRD(t, s, filepath.Join(repository, "drivers/api/crds/gpufabric.io_vgpuprofiles.yaml"))
	s.Serve(t, vgpuProfileKind.GVR(), func(obj *unstructured.Unstructured) map[string]any {
		return map[string]any{
			"observedGeneration":   obj.GetGeneration(),
			"deviceClass":          obj.GetName(),
			"extendedResourceName": "gpufabric.io/" + obj.GetName(),
			"fits":                 int64(8),
			"nodes":                []any{map[string]any{"name": "rack-0", "gpus": int64(2), "fits": int64(8)}},
			"conditions": []any{
				map[string]any{"type": "Ready", "status": "True", "reason": "Test", "message": "8 fit", "lastTransitionTime": "2026-01-01T00:00:00Z"},
			},
		}
	})
	t.Run("is created, keeps its spelling of quantities, is changed in place and imported", func(t *testing.T) {
		full := "mode = \"Software\"\nmemory = \"0.5Ti\"\ncores = 10\nsplit = 4\npolicy = \"Spread\"\nnamespaces = " +
			"[\"default\"]\nproduct_names = [\"NVIDIA L40S\"]\nwait_for = \"ready\"\n"
		check(t, resource.TestStep{Config: profile(s, "slice", full), Check: resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr(profileAddress, "memory", "0.5Ti"),
			resource.TestCheckResourceAttr(profileAddress, "extended_resource_name", "gpufabric.io/slice"),
			resource.TestCheckResourceAttr(profileAddress, "nodes.0.fits", "8"),
		)}, resource.TestStep{ResourceName: profileAddress, ImportState: true, ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"wait_for", "memory"}}, resource.TestStep{Config: profile(s, "slice", "mode = \"Exclusive\"\n"),
			ConfigPlanChecks: updates(profileAddress), Check: resource.TestCheckNoResourceAttr(profileAddress, "cores")})
	})
	t.Run("larger than every GPU is refused at plan time with the largest there is", func(t *testing.T) {
		check(
			t,
			resource.TestStep{
				Config:      profile(s, "huge", "mode = \"Software\"\nmemory = \"200Gi\"\n"),
				PlanOnly:    true,
				ExpectError: words("the largest is gpu-0 (NVIDIA GB200) of node rack-0 with 189471Mi"),
			},
		)
	})
}

// mixed is a layout of every form, with a wait for its nodes.
const mixed = `
	layout  = "mixed"
	layouts = {
		mixed = { gpus = [{ devices = [0, 1], mig_devices = { "1g.5gb" = 2, "3g.20gb" = 1 } }, { devices = [2], device_filter = ` +
	`["0x20B010DE"] }] }
		off   = { gpus = [{}] }
		none  = { gpus = [] }
	}
	wait_for = "ready"`

func testMIGLayout(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, filepath.Join(repository, "drivers/api/crds/gpufabric.io_miglayouts.yaml"))
	s.Serve(t, migLayoutKind.GVR(), func(obj *unstructured.Unstructured) map[string]any {
		return map[string]any{"observedGeneration": obj.GetGeneration(),
			"nodes":      []any{map[string]any{"name": "rack-0", "observedGeneration": obj.GetGeneration(), "state": "Applied", "message": ""}},
			"conditions": []any{readyCondition("True")}}
	})
	t.Run("is created, changed in place and imported", func(t *testing.T) {
		check(
			t,
			resource.TestStep{Config: layout(s, "layout", mixed), Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(
					layoutAddress,
					"ready",
					"true",
				),
				resource.TestCheckResourceAttr(layoutAddress, "nodes.0.state", "Applied"),
				func(*terraform.State) error {
					obj, err := s.Dynamic.Resource(migLayoutKind.GVR()).Get(t.Context(), "layout", metav1.GetOptions{})
					must(t, err)
					entries, _, _ := unstructured.NestedSlice(obj.Object, "spec", "config", "mig-configs", "off")
					if text := fmt.Sprint(entries); text != "[map[devices:all mig-enabled:false]]" {
						t.Errorf("layout off became %s", text)
					}
					return nil
				},
			)},
			resource.TestStep{
				ResourceName:            layoutAddress,
				ImportState:             true,
				ImportStateVerify:       true,
				ImportStateVerifyIgnore: []string{"wait_for"},
			},
			resource.TestStep{Config: layout(s, "layout", `
				layout  = "all-1g.5gb"
				layouts = provider::gpufabric::mig_parted("version: v1\nmig-configs:\n  all-1g.5gb:\n  - devices: all\n    mig-enabled: true\n  `+
				`  mig-devices: {1g.5gb: 7}\n")`), ConfigPlanChecks: updates(layoutAddress)},
		)
	})
}
