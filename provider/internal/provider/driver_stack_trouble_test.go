package provider

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	helm "helm.sh/helm/v3/pkg/release"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/cluster"
)

// testDriverStackTrouble tries releases that others touched, interrupted operations, and obstacles to removal.
func testDriverStackTrouble(t *testing.T, s *apiserver.Server) {
	background := context.Background() // PreConfig runs while the test's own context lives, but does not show which
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
			Config:    stack(s, "theirs", ""),
			ExpectError: words("or with create_before_destroy the one that is to be replaced, which needs another name. " +
				`Bring it under Terraform with an import block (id = "theirs-system/theirs")`),
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
					regexp.MustCompile(`image is example.invalid/other, the release has example.invalid/controller:1.0.0`),
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
	t.Run("every kind of drift is seen, named, mended in one apply without a new revision, and gone", func(t *testing.T) {
		patch := func(kind, name, patch string) {
			resource := s.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: kind}).Namespace("kinds-system")
			_, err := resource.Patch(background, name, types.StrategicMergePatchType, []byte(patch),
				metav1.PatchOptions{FieldManager: "kubectl-patch"})
			must(t, err)
		}
		const template = `{"spec":{"template":{"spec":%s}}}`
		named := func(pattern string) resource.TestCheckFunc {
			return resource.TestCheckTypeSetElemAttr(stackAddress, "drift.*", pattern)
		}
		const plugin, controller = "DaemonSet kinds-system/kinds-plugin: spec.template.spec.",
			"Deployment kinds-system/kinds-controller: spec.template.spec."
		check(t, resource.TestStep{Config: stack(s, "kinds", "")}, resource.TestStep{
			PreConfig: func() {
				patch("daemonsets", "kinds-plugin", fmt.Sprintf(template, `{"nodeSelector":{"nobody":"here"},"hostNetwork":true,
					"tolerations":[{"operator":"Exists"}],"containers":[{"name":"compute-domain-plugin","env":[{"name":"HTTPS_PROXY","value":"x"}]},
					{"name":"sidecar","image":"example.invalid/sidecar"}]}`))
				patch("deployments", "kinds-controller",
					`{"spec":{"replicas":0},"metadata":{"labels":{"app.kubernetes.io/managed-by":null,"team":"x"}}}`)
				patch("deployments", "kinds-controller", fmt.Sprintf(template, `{"containers":[{"name":"controller",
					"volumeMounts":[{"name":"v","mountPath":"/v"}]}],"volumes":[{"name":"v","emptyDir":{}}],"serviceAccountName":"other"}`))
				settings := s.Typed.CoreV1().ConfigMaps("kinds-system")
				_, err := settings.Patch(background, "kinds-settings", types.MergePatchType, []byte(`{"data":{"more":"1","driverRoot":null}}`),
					metav1.PatchOptions{FieldManager: "kubectl-patch"})
				must(t, err)
			},
			RefreshState: true, ExpectNonEmptyPlan: true,
			Check: resource.ComposeAggregateTestCheckFunc(
				named(plugin+"nodeSelector.nobody was added by kubectl-patch"),
				named(plugin+"hostNetwork was added by kubectl-patch"),
				named(plugin+"tolerations was added by kubectl-patch"),
				named(plugin+"containers[compute-domain-plugin].env was added by kubectl-patch"),
				named(plugin+"containers[sidecar] was added by kubectl-patch"),
				named("Deployment kinds-system/kinds-controller: spec.replicas is 0, the release has 1 (set by kubectl-patch)"),
				named("Deployment kinds-system/kinds-controller: metadata.labels.app.kubernetes.io/managed-by was removed"),
				named("Deployment kinds-system/kinds-controller: metadata.labels.team was added by kubectl-patch"),
				named(controller+"containers[controller].volumeMounts was added by kubectl-patch"),
				named(controller+"volumes was added by kubectl-patch"),
				named(controller+"serviceAccountName was added by kubectl-patch"),
				named("ConfigMap kinds-system/kinds-settings: data.more was added by kubectl-patch"),
			),
		}, resource.TestStep{
			Config: stack(s, "kinds", ""), ConfigPlanChecks: updates(stackAddress),
			Check: resource.ComposeAggregateTestCheckFunc(resource.TestCheckResourceAttr(stackAddress, "drift.#", "0"),
				resource.TestCheckResourceAttr(stackAddress, "revision", "1"), resource.TestCheckResourceAttr(stackAddress, "ready", "true")),
		}, resource.TestStep{Config: stack(s, "kinds", ""), PlanOnly: true})
	})
	t.Run("drift that is ignored is neither shown nor mended", func(t *testing.T) {
		ignored := `drift_ignore = ["DaemonSet ignored-system/*: spec.template.spec.containers[*].env"]`
		daemons := s.Typed.AppsV1().DaemonSets("ignored-system")
		check(t, resource.TestStep{Config: stack(s, "ignored", ignored)}, resource.TestStep{PreConfig: func() {
			_, err := daemons.Patch(background, "ignored-plugin", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":`+
				`[{"name":"compute-domain-plugin","env":[{"name":"HTTPS_PROXY","value":"x"}]}]}}}}`), metav1.PatchOptions{FieldManager: "injector"})
			must(t, err)
		}, Config: stack(s, "ignored", ignored), PlanOnly: true}, resource.TestStep{PreConfig: func() {
			_, err := daemons.Patch(background, "ignored-plugin", types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"hostPID":true}}}}`),
				metav1.PatchOptions{FieldManager: "kubectl-patch"})
			must(t, err)
		}, Config: stack(s, "ignored", ignored), ConfigPlanChecks: updates(stackAddress), Check: func(*terraform.State) error {
			daemon, err := daemons.Get(background, "ignored-plugin", metav1.GetOptions{})
			must(t, err)
			if spec := daemon.Spec.Template.Spec; spec.HostPID || len(spec.Containers[0].Env) != 1 {
				t.Errorf("hostPID %t, env %v: want the first mended and the second kept", spec.HostPID, spec.Containers[0].Env)
			}
			return nil
		}})
	})
	t.Run("an install that another live run has under way is left alone", func(t *testing.T) {
		check(t, resource.TestStep{PreConfig: func() {
			leaveRelease(t, s, "locked", helm.StatusPendingInstall, true, time.Now())
			holdLease(t, s, "locked")
		}, Config: stack(s, "locked", ""), ExpectError: words("is being changed by another run of Terraform (ci-7)")})
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
		check(t, resource.TestStep{Config: stack(s, "used", "timeouts = { delete = \"10s\" }")}, resource.TestStep{
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
				"timeouts = { delete = \"10s\" }",
			), Destroy: true, ExpectError: words("ComputeDomain default/by-hand (not being deleted)"),
		}, resource.TestStep{
			PreConfig: func() { must(t, domains.Delete(background, "by-hand", metav1.DeleteOptions{})) },
			Config:    stack(s, "used", ""),
		})
	})
	t.Run("a claim that a pod holds keeps the drivers and is named with the pod", func(t *testing.T) {
		claims := s.Typed.ResourceV1().ResourceClaims("default")
		check(t, resource.TestStep{Config: stack(s, "claimed", "timeouts = { delete = \"10s\" }")}, resource.TestStep{
			PreConfig: func() { holdClaim(t, s) },
			Config:    stack(s, "claimed", "timeouts = { delete = \"10s\" }"), Destroy: true,
			ExpectError: words("ResourceClaim default/held of driver compute-domain.nvidia.com (in use by pods/trainer)"),
		}, resource.TestStep{
			PreConfig: func() { must(t, claims.Delete(background, "held", metav1.DeleteOptions{})) },
			Config:    stack(s, "claimed", ""),
		})
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

func helmInstall(t *testing.T, s *apiserver.Server, name string, values map[string]any) {
	t.Helper()
	chart, err := loader.Load("testdata/stack")
	must(t, err)
	install := action.NewInstall(helmConfig(t, s, name+"-system"))
	install.ReleaseName, install.Namespace, install.CreateNamespace = name, name+"-system", true
	_, err = install.Run(chart, values)
	must(t, err)
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

// holdLease holds and renews the lease of a release until the test ends, as a run on another machine does.
func holdLease(t *testing.T, s *apiserver.Server, name string) {
	t.Helper()
	holder, now := "ci-7", metav1.NowMicro()
	leases := s.Typed.CoordinationV1().Leases(name + "-system")
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "gpufabric-release-" + name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now}}, metav1.CreateOptions{})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(cancel)
	group.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			if next, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
				lease = next
			}
		}
	})
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
