package provider

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/provider/internal/apiserver"
)

// testPreflight installs and upgrades a stack in a namespace whose PodSecurity level would refuse every node plugin.
func testPreflight(t *testing.T, s *apiserver.Server) {
	const namespace = "checked-system"
	namespaces := s.Typed.CoreV1().Namespaces()
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	enforce := func(level string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
		_, err := namespaces.Patch(t.Context(), namespace, types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
	}
	releases := func() int {
		t.Helper()
		list, err := s.Typed.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
		must(t, err)
		return len(list.Items)
	}
	c := newCore(t)
	config := func(mode, values string) string {
		more := fmt.Sprintf("values = [%q]", values)
		if mode != "" {
			more += fmt.Sprintf("\npreflight = %q", mode)
		}
		return stack(s, "checked", more)
	}
	parse := func(mode, values string) *configuration {
		t.Helper()
		cfg, err := c.parse(config(mode, values))
		must(t, err)
		return cfg
	}
	refused := func(t *testing.T, err error) {
		t.Helper()
		if err == nil {
			t.Fatal("want it refused")
		}
		contains(t, oneLine(err.Error()), "Preflight: 1 of", "PodSecurity: namespace checked-system enforces restricted",
			"docs/troubleshooting.md#podsecurityrefuses", "Nothing was changed")
	}
	each := func(name string, run func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			c.t = t
			run(t)
		})
		c.t = t
	}

	enforce("privileged")
	before, err := c.preview(t.Context(), parse(preflightFail, "{}"))
	must(t, err)
	enforce("restricted")
	each("fail refuses a plan, and leads to the entry", func(t *testing.T) {
		_, err := c.preview(t.Context(), parse(preflightFail, "{}"))
		refused(t, err)
	})
	each("fail refuses the apply of a plan from when all was well, and nothing is installed", func(t *testing.T) {
		server, err := c.connect(t.Context(), parse(preflightFail, "{}"))
		must(t, err)
		refused(t, c.apply(t.Context(), server, before))
		if n := releases(); n != 0 {
			t.Errorf("%d releases are there", n)
		}
	})
	for mode, name := range map[string]string{preflightWarn: "warn says so and goes on", "": "no word is warn"} {
		each(name, func(t *testing.T) {
			_, warnings := c.planText(config(mode, "{}"))
			contains(t, warnings, "Preflight: 1 of", "docs/troubleshooting.md#podsecurityrefuses")
		})
	}
	each("off does not look", func(t *testing.T) {
		if _, warnings := c.planText(config(preflightOff, "{}")); strings.Contains(warnings, "Preflight") {
			t.Errorf("it looked:\n%s", warnings)
		}
	})
	c.run(config("", "{}"))
	each("an upgrade is refused as an install is, and one that changes nothing is not looked at", func(t *testing.T) {
		_, err := c.preview(t.Context(), parse(preflightFail, "controller: {replicas: 2}"))
		refused(t, err)
		if warnings := c.run(config(preflightFail, "{}")); strings.Contains(warnings, "Preflight") {
			t.Errorf("the stack is as wanted, and it looked:\n%s", warnings)
		}
		enforce("privileged")
		c.run(config(preflightFail, "controller: {replicas: 2}"))
	})
	c.run(as(s))
	must(t, namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}))
}

func TestPreflightWarnsOnlyAboutFindings(t *testing.T) {
	checks := []preflight.Check{{Name: "nodes", Result: preflight.NotSeen, Detail: "nodes cannot be listed"},
		{Name: "quota", Result: preflight.OK, Detail: "well"}}
	var m driverStackModel
	if diags := m.judge(checks); len(diags) != 0 {
		t.Errorf("%v", diags)
	}
	checks = append(checks, preflight.Check{Name: "driver versions", Result: preflight.Warning, Detail: "two.", Do: "Install one.",
		Entry: "docs/troubleshooting.md#x"})
	diags := m.judge(checks)
	if len(diags) != 1 || diags.HasError() || diags[0].Detail() != "- driver versions: two. Install one. (docs/troubleshooting.md#x)" {
		t.Errorf("%v", diags)
	}
}
