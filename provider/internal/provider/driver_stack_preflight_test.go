package provider

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/provider/internal/apiserver"
)

// testPreflight installs and upgrades a stack in a namespace whose PodSecurity level would refuse every node plugin.
func testPreflight(t *testing.T, s *apiserver.Server, rc string) {
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
	dir := t.TempDir()
	must(t, os.CopyFS(filepath.Join(dir, "testdata/stack"), os.DirFS("testdata/stack")))
	main := strings.ReplaceAll(stack(s, "checked", "preflight = var.preflight\nvalues = [var.values]"), "hashicorp/", "gpufabric/") +
		"variable \"preflight\" { default = null }\nvariable \"values\" { default = \"{}\" }\n"
	must(t, os.WriteFile(filepath.Join(dir, "main.tf"), []byte(main), 0o600))
	with := func(mode, values string) *cli {
		variables := map[string]string{"values": values}
		if mode != "" {
			variables["preflight"] = mode
		}
		return newCLI(t, rc, dir, variables)
	}
	refused := func(t *testing.T, out string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("want it refused:\n%s", out)
		}
		contains(t, oneLine(out), "Error: Preflight: 1 of", "PodSecurity: namespace checked-system enforces restricted",
			"docs/troubleshooting.md#podsecurityrefuses", "Nothing was changed")
	}

	enforce("privileged")
	with(preflightFail, "{}").run("plan", "-out=before")
	enforce("restricted")
	t.Run("fail refuses a plan, and leads to the entry", func(t *testing.T) {
		out, err := with(preflightFail, "{}").try("plan")
		refused(t, out, err)
	})
	t.Run("fail refuses the apply of a plan from when all was well, and nothing is installed", func(t *testing.T) {
		c := with(preflightFail, "{}")
		apply := exec.CommandContext(t.Context(), c.terraform, "apply", "-no-color", "-input=false", "before")
		apply.Dir, apply.Env = c.dir, c.env
		out, err := apply.CombinedOutput()
		refused(t, string(out), err)
		if n := releases(); n != 0 {
			t.Errorf("%d releases are there", n)
		}
	})
	for mode, name := range map[string]string{preflightWarn: "warn says so and goes on", "": "no word is warn"} {
		t.Run(name, func(t *testing.T) {
			contains(t, oneLine(with(mode, "{}").run("plan")), "Warning: Preflight: 1 of", "docs/troubleshooting.md#podsecurityrefuses")
		})
	}
	t.Run("off does not look", func(t *testing.T) {
		if out := with(preflightOff, "{}").run("plan"); strings.Contains(out, "Preflight") {
			t.Errorf("it looked:\n%s", out)
		}
	})
	with("", "{}").run("apply", "-auto-approve")
	t.Run("an upgrade is refused as an install is, and one that changes nothing is not looked at", func(t *testing.T) {
		out, err := with(preflightFail, "controller: {replicas: 2}").try("plan")
		refused(t, out, err)
		if out := with(preflightFail, "{}").run("apply", "-auto-approve"); strings.Contains(out, "Preflight") {
			t.Errorf("the stack is as wanted, and it looked:\n%s", out)
		}
		enforce("privileged")
		with(preflightFail, "controller: {replicas: 2}").run("apply", "-auto-approve")
	})
	with("", "{}").run("destroy", "-auto-approve")
	must(t, namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}))
}

func TestAPreflightThatSawNothingSaysNothing(t *testing.T) {
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
