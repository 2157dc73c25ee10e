package charts

import (
	"slices"
	"strings"
	"testing"
)

// The plugin sees only the control socket of the node's nvidia-imex.
func TestHostModeMountsOnlyDirectoryOfSocket(t *testing.T) {
	render := func(values map[string]any) (args, mounts []string) {
		pod := pods(t, renderValues(t, "gpufabric", map[string]any{"computeDomains": values}))["gpufabric-compute-domain-plugin"]
		if pod.Spec.HostNetwork {
			t.Errorf("%v: the plugin is in the node's network", values)
		}
		for _, mount := range pod.Spec.Containers[0].VolumeMounts {
			mounts = append(mounts, mount.MountPath)
			if strings.Contains(mount.MountPath, "imex") && !mount.ReadOnly {
				t.Errorf("%s can be written", mount.MountPath)
			}
		}
		return pod.Spec.Containers[0].Args, mounts
	}
	_, without := render(map[string]any{"imex": "clique"})
	for socket, want := range map[string][]string{
		"":                                  {"/etc/nvidia-imex"},
		"/run/imex-of-ours/ctrl.sock":       {"/run/imex-of-ours"},
		"/run/nvidia/imex/ctrl.sock":        nil, // the driver container's place is mounted in any case
		"/usr/local/share/imex/a/ctrl.sock": {"/usr/local/share/imex/a"},
	} {
		values := map[string]any{"imex": "host"}
		if socket != "" {
			values["hostSocket"] = socket
		} else {
			socket = "/etc/nvidia-imex/imex_ctrl.sock"
		}
		args, mounts := render(values)
		added := slices.DeleteFunc(mounts, func(path string) bool { return slices.Contains(without, path) })
		if !slices.Equal(added, want) {
			t.Errorf("%s: mounts %v, want %v", socket, added, want)
		}
		if !slices.Contains(args, "--imex=Host") || !slices.Contains(args, "--host-imex-socket="+socket) {
			t.Errorf("%s: flags %v", socket, args)
		}
	}
}

func TestHostModeRejectsSocketInSharedDirectory(t *testing.T) {
	for _, socket := range []string{"/run/ctrl.sock", "/var/run/ctrl.sock", "ctrl.sock", "/run/a/" + strings.Repeat("b", 120)} {
		values := map[string]any{"computeDomains": map[string]any{"imex": "host", "hostSocket": socket}}
		if _, err := Render(load(t, "gpufabric"), values, Cluster{}); err == nil || !strings.Contains(err.Error(), "hostSocket") {
			t.Errorf("%s: %v", socket, err)
		}
	}
}
