package charts

import (
	"slices"
	"testing"
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
