package provider

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/provider/internal/apiserver"
)

func stack(s *apiserver.Server, name, more string) string {
	return as(
		s,
	) + fmt.Sprintf(
		"resource \"gpufabric_driver_stack\" \"test\" {\n  name = %q\n  namespace = \"%s-system\"\n  chart = \"testdata/stack\"\n%s\n}\n",
		name,
		name,
		more,
	)
}

const stackAddress = "gpufabric_driver_stack.test"

var fingerprint = regexp.MustCompile(`^[0-9a-f]{12}$`)

func testDriverStack(t *testing.T, s *apiserver.Server) {
	t.Run("is installed, shown as ready, left alone by the next plan and removed without remains", func(t *testing.T) {
		check(t, resource.TestStep{
			Config: stack(s, "first", ""),
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(stackAddress, "status", "deployed"),
				resource.TestCheckResourceAttr(stackAddress, "ready", "true"),
				resource.TestCheckResourceAttr(stackAddress, "revision", "1"),
				resource.TestCheckResourceAttr(stackAddress, "chart_version", "1.0.0"),
				resource.TestCheckResourceAttr(stackAddress, "drift.#", "0"),
			),
		}, resource.TestStep{
			Config:           stack(s, "first", ""),
			ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}},
		}, resource.TestStep{
			ResourceName: stackAddress, ImportState: true, ImportStateVerify: true, ImportStateVerifyIgnore: []string{"chart"},
		})
		nothingLeft(t, s, "first-system")
	})
	t.Run("shows which value changes and is upgraded in place", func(t *testing.T) {
		check(t, resource.TestStep{Config: stack(s, "second", "")}, resource.TestStep{
			Config: stack(s, "second", `values = [jsonencode({controller = {replicas = 3}})]
				hardware = {driver_root = "/run/nvidia/driver"}`),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(stackAddress, plancheck.ResourceActionUpdate)},
			},
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestMatchResourceAttr(stackAddress, "effective_values.controller.replicas", fingerprint),
				resource.TestMatchResourceAttr(stackAddress, "effective_values.hardware.driverRoot", fingerprint),
				resource.TestCheckResourceAttr(stackAddress, "revision", "2"),
			),
		})
	})
	t.Run("is imported with the values of its release", func(t *testing.T) {
		check(t, resource.TestStep{Config: stack(s, "imported", `values = ["controller:\n  replicas: 3\n"]`)}, resource.TestStep{
			ResourceName: stackAddress, ImportState: true, ImportStateVerify: true, // each import makes its own salt of the fingerprints
			ImportStateVerifyIgnore: []string{"chart", "effective_values"},
		})
	})
	t.Run("refuses at plan time a value that the chart's schema does not allow", func(t *testing.T) {
		check(t, resource.TestStep{
			Config:      stack(s, "third", `values = ["controler: {}"]`),
			ExpectError: regexp.MustCompile(`(?s)Values the chart does not allow.*controler`),
			PlanOnly:    true,
		})
	})
	t.Run("takes back an install that failed and says why", func(t *testing.T) {
		check(t, resource.TestStep{
			Config:      stack(s, "fourth", `values = ["broken: true"]`),
			ExpectError: regexp.MustCompile(`(?s)NoSuchType`),
		})
		until(t, t.Context(), "namespace fourth-system is gone", func() bool { // the install that failed deletes it, and does not wait for that
			_, err := s.Typed.CoreV1().Namespaces().Get(t.Context(), "fourth-system", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		nothingLeft(t, s, "fourth-system")
	})
}

// nothingLeft checks that a destroyed stack left neither its namespace nor its CRD.
func nothingLeft(t *testing.T, s *apiserver.Server, namespace string) {
	t.Helper()
	if _, err := s.Typed.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("namespace %s: want it gone, got error %v", namespace, err)
	}
	if _, err := s.Dynamic.Resource(customResourceDefinitions).Get(t.Context(), "computedomains.resource.nvidia.com",
		metav1.GetOptions{}); !apierrors.IsNotFound(
		err,
	) {
		t.Errorf("CRD computedomains.resource.nvidia.com: want it gone, got error %v", err)
	}
}
