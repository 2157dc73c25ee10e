package provider

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/provider/internal/apiserver"
)

// testSecretValues gives a stack values that must reach the chart and neither plan nor state.
func testSecretValues(t *testing.T, s *apiserver.Server) {
	with := func(secret string, version int, more string) string {
		return stack(s, "secret", fmt.Sprintf("values_wo = [\"hardware: {driverRoot: %s}\"]\nvalues_wo_version = %d\n%s", secret, version, more))
	}
	driverRoot := func(want string) resource.TestCheckFunc {
		return func(state *terraform.State) error {
			settings, err := s.Typed.CoreV1().ConfigMaps("secret-system").Get(t.Context(), "secret-settings", metav1.GetOptions{})
			must(t, err)
			if got := settings.Data["driverRoot"]; got != want {
				t.Errorf("the chart got %q, want %q", got, want)
			}
			text, err := json.Marshal(state)
			must(t, err)
			if strings.Contains(string(text), "/secret/") {
				t.Errorf("the secret is in the state: %s", text)
			}
			return nil
		}
	}
	action := func(a plancheck.ResourceActionType) resource.ConfigPlanChecks {
		return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(stackAddress, a)}}
	}
	check(t,
		resource.TestStep{Config: with("/secret/a", 1, ""), Check: driverRoot("/secret/a")},
		resource.TestStep{Config: with("/secret/a", 1, ""), ConfigPlanChecks: action(plancheck.ResourceActionNoop)},
		// As documented, only another version has an effect.
		resource.TestStep{Config: with("/secret/b", 1, ""), ConfigPlanChecks: action(plancheck.ResourceActionNoop)},
		resource.TestStep{Config: with("/secret/b", 2, ""), ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
			Check: driverRoot("/secret/b")},
		resource.TestStep{PreConfig: func() { // drift reports what an object says and what it should; not where that is a secret
			_, err := s.Typed.CoreV1().ConfigMaps(
				"secret-system",
			).Patch(
				t.Context(),
				"secret-settings",
				types.MergePatchType,
				[]byte(`{"data": {"driverRoot": "/changed"}}`),
				metav1.PatchOptions{},
			)
			must(t, err)
		}, RefreshState: true, ExpectNonEmptyPlan: true, Check: func(state *terraform.State) error {
			text, err := json.Marshal(state)
			must(t, err)
			if strings.Contains(string(text), "/secret/") || !strings.Contains(string(text), "data.driverRoot was changed by") {
				t.Errorf("want the drift without the secret in the state: %s", text)
			}
			return nil
		}},
		resource.TestStep{
			Config:      with("/secret/b", 2, "hardware = { driver_root = \"/x\" }"),
			ExpectError: words("hardware.driverRoot stands in values, components or hardware too"),
		},
		resource.TestStep{Config: stack(s, "secret", "values_wo = [\"a: {}\"]"),
			ExpectError: words(`Attribute "values_wo_version" must be specified`)},
		resource.TestStep{Config: with("/secret/b", 2, "")}, // the end destroys what the last step says
	)
}
