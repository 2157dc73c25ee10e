package charts

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestFakeHardwareMountsCDIDirectoryOnlyWhenItWritesSpecs(t *testing.T) {
	const directory = "/var/run/cdi"
	for root, wanted := range map[string]bool{"": false, directory: true} {
		for name, pod := range pods(t, renderValues(t, "fake-hardware", map[string]any{"cdiRoot": root})) {
			container := pod.Spec.Containers[0]
			if got := slices.Contains(container.Args, "--cdi-root="+directory); got != wanted {
				t.Errorf("cdiRoot %q: %s has %v", root, name, container.Args)
			}
			if got := slices.Contains(mounts(pod, container), directory+" -> "+directory); got != wanted {
				t.Errorf("cdiRoot %q: %s mounts %v", root, name, mounts(pod, container))
			}
			for _, reason := range unstartable(pod, container) {
				t.Errorf("cdiRoot %q: %s: %s", root, name, reason)
			}
		}
	}
}

func TestFakeHardwareGivesItsProfileToTheAgent(t *testing.T) {
	for profile, wanted := range map[string]bool{"": false, "h100-hgx": true} {
		for name, pod := range pods(t, renderValues(t, "fake-hardware", map[string]any{"profile": profile})) {
			if got := slices.Contains(pod.Spec.Containers[0].Args, "--profile=h100-hgx"); got != wanted {
				t.Errorf("profile %q: %s has %v", profile, name, pod.Spec.Containers[0].Args)
			}
		}
	}
}

func TestFakeHardwareMayBePrivilegedOnOpenShift(t *testing.T) {
	for _, serves := range [][]string{nil, {"security.openshift.io/v1"}} {
		objects, err := Render(load(t, "fake-hardware"), nil, Cluster{Serves: serves})
		if err != nil {
			t.Fatal(err)
		}
		bound := slices.ContainsFunc(objects, func(o Object) bool {
			role, _, _ := unstructured.NestedString(o.Object, "roleRef", "name")
			return o.GetKind() == "RoleBinding" && role == "system:openshift:scc:privileged"
		})
		if bound != (serves != nil) {
			t.Errorf("with %v: bound to the SCC privileged: %t", serves, bound)
		}
	}
}
