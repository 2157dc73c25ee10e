package provider

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	helm "helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/cluster"
)

// testDriverStackTrouble tries releases that others touched, operations that were interrupted, and what stands in the way of removal.
func testDriverStackTrouble(t *testing.T, s *apiserver.Server) {
	background := context.Background() // PreConfig runs while the test's own context lives, but says nothing about which
	for _, c := range []struct {
		name   string
		status helm.Status
		own    bool
	}{
		{"an install of ours that was killed is recovered", helm.StatusPendingInstall, true},
		{"an install that failed is recovered, whoever made it", helm.StatusFailed, false},
		{"an uninstall that was killed is finished first", helm.StatusUninstalling, false},
		{"a kept history of an uninstalled release is no obstacle", helm.StatusUninstalled, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, resource.TestStep{
				PreConfig: func() { leaveRelease(t, s, "rest", c.status, c.own, time.Now()) },
				Config:    stack(s, "rest", ""),
				Check: resource.ComposeAggregateTestCheckFunc(
					resource.TestCheckResourceAttr(stackAddress, "status", "deployed"), resource.TestCheckResourceAttr(stackAddress, "ready", "true")),
			})
		})
	}
	t.Run("another client's install that is under way is left alone and named", func(t *testing.T) {
		check(t, resource.TestStep{
			PreConfig: func() { leaveRelease(t, s, "busy", helm.StatusPendingInstall, false, time.Now()) },
			Config:    stack(s, "busy", ""), ExpectError: words("is pending-install since"),
		})
	})
	t.Run("another client's install that has been pending for long counts as dead", func(t *testing.T) {
		check(t, resource.TestStep{
			PreConfig: func() { leaveRelease(t, s, "dead", helm.StatusPendingInstall, false, time.Now().Add(-time.Hour)) },
			Config:    stack(s, "dead", ""),
		})
	})
	t.Run("a release that works and is not in the state is not taken over, and the import is spelt out", func(t *testing.T) {
		check(t, resource.TestStep{
			PreConfig: func() { leaveRelease(t, s, "theirs", helm.StatusDeployed, false, time.Now()) },
			Config:    stack(s, "theirs", ""), ExpectError: words(`import block (id = "theirs-system/theirs")`),
		})
	})
	t.Run("objects that somebody changed or deleted are named in the plan's refresh and repaired", func(t *testing.T) {
		check(t, resource.TestStep{Config: stack(s, "drift", "")}, resource.TestStep{
			PreConfig: func() {
				must(t, s.Typed.CoreV1().ConfigMaps("drift-system").Delete(background, "drift-settings", metav1.DeleteOptions{}))
				deployment, err := s.Typed.AppsV1().Deployments("drift-system").Get(background, "drift-controller", metav1.GetOptions{})
				must(t, err)
				deployment.Spec.Template.Spec.Containers[0].Image = "example.invalid/other"
				_, err = s.Typed.AppsV1().Deployments("drift-system").Update(background, deployment, metav1.UpdateOptions{})
				must(t, err)
			},
			RefreshState: true, ExpectNonEmptyPlan: true,
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr(stackAddress, "drift.0", "ConfigMap drift-system/drift-settings was deleted"),
				resource.TestMatchResourceAttr(
					stackAddress,
					"drift.1",
					regexp.MustCompile(`image is example.invalid/other, the release says example.invalid/controller:1.0.0`),
				),
			),
		}, resource.TestStep{
			Config: stack(s, "drift", ""),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(stackAddress, plancheck.ResourceActionUpdate)},
			},
			Check: resource.TestCheckResourceAttr(stackAddress, "drift.#", "0"),
		})
	})
	t.Run("values that somebody changed with helm are put back", func(t *testing.T) {
		check(t, resource.TestStep{Config: stack(s, "values", "")}, resource.TestStep{
			PreConfig: func() { helmUpgrade(t, s, "values", map[string]any{"controller": map[string]any{"replicas": 5}}) },
			Config:    stack(s, "values", ""),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(stackAddress, plancheck.ResourceActionUpdate)},
			},
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckNoResourceAttr(
					stackAddress,
					"effective_values.controller.replicas",
				),
				resource.TestCheckResourceAttr(stackAddress, "revision", "3"),
			),
		})
	})
	t.Run("a release that somebody uninstalled is planned again", func(t *testing.T) {
		check(t, resource.TestStep{Config: stack(s, "away", "")}, resource.TestStep{
			PreConfig: func() {
				_, err := action.NewUninstall(helmConfig(t, s, "away-system")).Run("away")
				must(t, err)
			},
			Config: stack(s, "away", ""),
			ConfigPlanChecks: resource.ConfigPlanChecks{
				PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(stackAddress, plancheck.ResourceActionCreate)},
			},
		})
	})
	t.Run("a domain that nobody deletes keeps the drivers and is named", func(t *testing.T) {
		s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
		domains := s.Dynamic.Resource(computeDomains).Namespace("default")
		check(t, resource.TestStep{Config: stack(s, "used", "timeouts = { delete = \"30s\" }")}, resource.TestStep{
			PreConfig: func() {
				_, err := domains.Create(
					background,
					&unstructured.Unstructured{Object: map[string]any{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
						"metadata": map[string]any{
							"name": "by-hand",
						}, "spec": map[string]any{"channel": map[string]any{"resourceClaimTemplate": map[string]any{"name": "x"}}}}},
					metav1.CreateOptions{},
				)
				must(t, err)
			},
			Config: stack(
				s,
				"used",
				"timeouts = { delete = \"30s\" }",
			), Destroy: true, ExpectError: words("ComputeDomain default/by-hand (not being deleted)"),
		}, resource.TestStep{
			PreConfig: func() { must(t, domains.Delete(background, "by-hand", metav1.DeleteOptions{})) },
			Config:    stack(s, "used", ""),
		})
	})
	t.Run("a claim that a pod holds keeps the drivers and is named with the pod", func(t *testing.T) {
		claims := s.Typed.ResourceV1().ResourceClaims("default")
		check(t, resource.TestStep{Config: stack(s, "claimed", "timeouts = { delete = \"30s\" }")}, resource.TestStep{
			PreConfig: func() { holdClaim(t, s) },
			Config:    stack(s, "claimed", "timeouts = { delete = \"30s\" }"), Destroy: true,
			ExpectError: words("ResourceClaim default/held of driver compute-domain.nvidia.com (in use by pods/trainer)"),
		}, resource.TestStep{
			PreConfig: func() { must(t, claims.Delete(background, "held", metav1.DeleteOptions{})) },
			Config:    stack(s, "claimed", ""),
		})
	})
	t.Run("domains and drivers without an order between them are created and destroyed in one go", func(t *testing.T) {
		s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
		unordered := "resource \"gpufabric_compute_domain\" \"many\" {\n  count = 5\n  name = \"unordered-${count.index}\"\n  channel = { " +
			"resource_claim_template = \"unordered-${count.index}\" }\n}\n"
		check(t, resource.TestStep{Config: stack(s, "together", "") + unordered})
		nothingLeft(t, s, "together-system")
	})
	t.Run("a namespace that others use stays, with a warning", func(t *testing.T) {
		check(t, resource.TestStep{Config: stack(s, "shared", "")}, resource.TestStep{
			PreConfig: func() {
				_, err := s.Typed.CoreV1().Pods("shared-system").Create(background, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "lodger"},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}}}}, metav1.CreateOptions{})
				must(t, err)
			},
			Config: stack(s, "shared", ""), Destroy: true,
		})
		if _, err := s.Typed.CoreV1().Namespaces().Get(t.Context(), "shared-system", metav1.GetOptions{}); err != nil {
			t.Errorf("namespace shared-system: want it kept, got error %v", err)
		}
	})
}

func helmConfig(t *testing.T, s *apiserver.Server, namespace string) *action.Configuration {
	t.Helper()
	getter, err := (&cluster.Client{Config: s.Config}).Getter(namespace)
	must(t, err)
	config := &action.Configuration{}
	must(t, config.Init(getter, namespace, "secret", t.Logf))
	return config
}

// leaveRelease writes Helm's record of a release, as an operation leaves it that ended in the status, or did not end.
func leaveRelease(t *testing.T, s *apiserver.Server, name string, status helm.Status, own bool, at time.Time) {
	t.Helper()
	namespace := name + "-system"
	_, err := s.Typed.CoreV1().Namespaces().Create(
		t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{},
	)
	if err != nil {
		t.Logf("namespace %s: %v", namespace, err)
	}
	chart, err := loader.Load("testdata/stack")
	must(t, err)
	record := &helm.Release{Name: name, Namespace: namespace, Version: 1, Chart: chart,
		Info: &helm.Info{Status: status, Description: "left by a test"}}
	record.Info.FirstDeployed.Time, record.Info.LastDeployed.Time = at, at
	if own {
		record.Labels = map[string]string{"gpufabric.io/managed-by": "terraform"}
	}
	must(t, helmConfig(t, s, namespace).Releases.Create(record))
}

func helmUpgrade(t *testing.T, s *apiserver.Server, name string, values map[string]any) {
	t.Helper()
	chart, err := loader.Load("testdata/stack")
	must(t, err)
	upgrade := action.NewUpgrade(helmConfig(t, s, name+"-system"))
	upgrade.Namespace = name + "-system"
	_, err = upgrade.Run(name, chart, values)
	must(t, err)
}

// holdClaim makes a claim of driver compute-domain.nvidia.com that is allocated and reserved for a pod.
func holdClaim(t *testing.T, s *apiserver.Server) {
	t.Helper()
	claims := s.Typed.ResourceV1().ResourceClaims("default")
	claim, err := claims.Create(
		t.Context(),
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "held"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{
				{Name: "channel", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "compute-domain-default-channel.nvidia.com"}},
			}}}},
		metav1.CreateOptions{},
	)
	must(t, err)
	claim.Status = resourcev1.ResourceClaimStatus{
		Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{
					{Request: "channel", Driver: "compute-domain.nvidia.com", Pool: "p", Device: "channel-0"},
				},
			},
		},
		ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "trainer", UID: "1"}},
	}
	_, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	must(t, err)
}
