package machine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Configurations as containerd and CRI-O read them.
const (
	cri2    = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n"
	cri3    = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"
	imports = "imports = [\"/etc/containerd/conf.d/*.toml\"]\n"
	noNRI   = "[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true\n"
)

func TestContainerdConfigurationShowsCDIAndNRI(t *testing.T) {
	const password = "[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r\".auth]\n  password = \"hunter2#secret\"\n"
	for name, c := range map[string]struct {
		runtime       string
		directories   []string // of the node; nil: /etc/containerd
		files         map[string]string
		cdi, nri, why string
		dirs, unread  string
	}{
		"containerd 1.7 without a configuration": {runtime: "containerd://1.7.27"},
		"containerd 1.7 by its defaults": {runtime: "containerd://1.7.27", files: map[string]string{"/etc/containerd/config.toml": cri2},
			cdi: "off", nri: "off", why: "enable_cdi = true is not set"},
		"containerd 1.7 with CDI on": {runtime: "containerd://1.7.27",
			files: map[string]string{"/etc/containerd/config.toml": cri2 + "enable_cdi = true # since\n" + password}, cdi: "on", nri: "off"},
		"containerd 1.7 where a drop-in replaces the table": {runtime: "containerd://1.7.27", files: map[string]string{
			"/etc/containerd/config.toml": imports + cri2 + "enable_cdi = true\n", "/etc/containerd/conf.d/10.toml": cri2 + "x = 1\n"},
			cdi: "off", nri: "off", why: "is not set"},
		"containerd 1.7 with a drop-in of another plugin": {runtime: "containerd://1.7.27", files: map[string]string{
			"/etc/containerd/config.toml": imports + cri2 + "enable_cdi = true\n", "/etc/containerd/conf.d/10.toml": "version = 2\n" + noNRI},
			cdi: "on", nri: "off"},
		"containerd 1.7 where conf.d is not imported": {runtime: "containerd://1.7.27", files: map[string]string{
			"/etc/containerd/config.toml": cri2, "/etc/containerd/conf.d/10.toml": cri2 + "enable_cdi = true\n"},
			cdi: "off", nri: "off", why: "is not set"},
		"containerd 2.1 by its defaults": {runtime: "containerd://2.1.0", files: map[string]string{"/etc/containerd/config.toml": cri3},
			cdi: "on", nri: "on", dirs: "/etc/cdi /var/run/cdi"},
		"containerd 2.1 with both off": {runtime: "containerd://2.1.0",
			files: map[string]string{"/etc/containerd/config.toml": cri3 + "enable_cdi = false\n" + noNRI}, cdi: "off", nri: "off",
			why: "enable_cdi = false in /etc/containerd/config.toml"},
		"containerd 2.4 which has no enable_cdi": {runtime: "containerd://2.4.2",
			files: map[string]string{"/etc/containerd/config.toml": cri3 + "enable_cdi = false\n"}, cdi: "on", nri: "on"},
		"containerd 2.4 without a configuration": {runtime: "containerd://2.4.2", cdi: "on"},
		"containerd 2.1 with a drop-in": {runtime: "containerd://2.1.0", files: map[string]string{
			"/etc/containerd/config.toml":    imports + cri3,
			"/etc/containerd/conf.d/99.toml": cri3 + "cdi_spec_dirs = [\n  '/var/cdi/static', # ours\n  '/var/cdi/dynamic',\n]\n"},
			cdi: "on", nri: "on", dirs: "/var/cdi/static /var/cdi/dynamic"},
		"an import from elsewhere": {runtime: "containerd://2.1.0",
			files: map[string]string{"/etc/containerd/config.toml": "imports = ['/opt/x.toml']\n" + cri3}, unread: "/opt/x.toml"},
		"imports in a circle": {runtime: "containerd://2.1.0",
			files: map[string]string{"/etc/containerd/config.toml": "imports = ['config.toml']\n" + cri3}, cdi: "on", nri: "on"},
		"k3s": {runtime: "containerd://2.3.2-k3s1", directories: []string{"/var/lib/rancher/k3s/agent/etc/containerd"},
			files: map[string]string{"/var/lib/rancher/k3s/agent/etc/containerd/config.toml": "imports = [\"/var/lib/rancher/k3s" +
				"/agent/etc/containerd/config-v3.toml.d/*.toml\"]\n" + cri3,
				"/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/a.toml": noNRI},
			cdi: "on", nri: "off"},
		"RKE2 with containerd 1.7": {runtime: "containerd://1.7.29-k3s1", directories: []string{"/var/lib/rancher/rke2/agent/etc/containerd"},
			files: map[string]string{"/var/lib/rancher/rke2/agent/etc/containerd/config.toml": cri2 + "enable_cdi = true\n"}, cdi: "on", nri: "off"},
		"Talos": {runtime: "containerd://2.1.4", directories: []string{"/etc/cri"},
			files: map[string]string{"/etc/cri/conf.d/20-customization.part": cri3 + "cdi_spec_dirs = ['/var/cdi/dynamic']\n" + noNRI},
			cdi:   "on", nri: "off", dirs: "/var/cdi/dynamic"},
		"CRI-O by its defaults": {runtime: "cri-o://1.34.0", directories: []string{"/etc/crio"},
			files: map[string]string{"/etc/crio/crio.conf": "[crio.runtime]\n"}, cdi: "on", nri: "on"},
		"CRI-O with drop-ins": {runtime: "cri-o://1.34.0", directories: []string{"/etc/crio"}, files: map[string]string{
			"/etc/crio/crio.conf": "[crio.nri]\nenable_nri = true\n", "/etc/crio/crio.conf.d/10-x.conf": "[crio.nri]\nenable_nri = false\n" +
				"[crio.runtime]\ncdi_spec_dirs = [\"/run/cdi\"]\n"}, cdi: "on", nri: "off", dirs: "/run/cdi"},
		"another's keys": {runtime: "containerd://2.1.0",
			files: map[string]string{"/etc/containerd/config.toml": "[plugins.other]\nenable_cdi = false\ndisable = true\n"}, cdi: "on", nri: "on"},
		"no configuration at all": {runtime: "containerd://2.1.0",
			files:  map[string]string{"/etc/containerd/config.toml": "\x00\xff[[[= =\n]enable_cdi=\nhunter2 = [\n"},
			unread: "config.toml cannot be read from line 1 on"},
		"containerd 1.7 by a configuration without a version": {runtime: "containerd://1.7.27", files: map[string]string{
			"/etc/containerd/config.toml": strings.TrimPrefix(cri2, "version = 2\n") + "enable_cdi = true\n"},
			cdi: "off", nri: "off", why: "is not set"},
		"containerd 1.7 by version 1's names": {runtime: "containerd://1.7.27", files: map[string]string{
			"/etc/containerd/config.toml": "[plugins.cri]\nenable_cdi = true\n[plugins.nri]\ndisable = false\n"}, cdi: "on", nri: "on"},
		"containerd 1.7 with the table of containerd 2": {runtime: "containerd://1.7.27", files: map[string]string{
			"/etc/containerd/config.toml": strings.Replace(cri3, "3", "2", 1) + "enable_cdi = true\n"}, cdi: "off", nri: "off", why: "is not set"},
		"containerd 2.2 with the table of containerd 1 in version 3": {runtime: "containerd://2.2.1", files: map[string]string{
			"/etc/containerd/config.toml": strings.Replace(cri2, "2", "3", 1) + "enable_cdi = false\n"}, cdi: "on", nri: "on"},
		"containerd 2.3 with the table of containerd 1 in version 3": {runtime: "containerd://2.3.4", files: map[string]string{
			"/etc/containerd/config.toml": strings.Replace(cri2, "2", "3", 1) + "enable_cdi = false\n"},
			cdi: "off", nri: "on", why: "enable_cdi = false"},
		"an inline table": {runtime: "containerd://1.7.27", files: map[string]string{
			"/etc/containerd/config.toml": "version = 2\n[plugins]\n'io.containerd.grpc.v1.cri' = { \"enable_cdi\" = true }\n"},
			cdi: "on", nri: "off"},
		"no directory of specs": {runtime: "containerd://2.1.0", files: map[string]string{
			"/etc/containerd/config.toml": cri3 + "cdi_spec_dirs = []\n"}, cdi: "off", nri: "on", why: "cdi_spec_dirs is empty in /etc/"},
		"a runtime that is not known": {runtime: "docker://29.0.0", unread: "docker"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			for file, text := range c.files {
				n.write("node"+file, text)
			}
			directories := c.directories
			if directories == nil {
				directories = []string{"/etc/containerd", "/etc/crio"}
			}
			var places []string
			for _, d := range directories {
				places = append(places, n.root+"/node"+d+"="+d)
			}
			got := n.look("--runtime="+c.runtime, "--runtime-configuration="+strings.Join(places, ","))
			if got.CDI != c.cdi || got.NRI != c.nri || !strings.Contains(got.CDIWhy, c.why) || (c.why == "") != (got.CDIWhy == "") ||
				!strings.Contains(strings.Join(got.SpecDirs, " "), c.dirs) || strings.Contains(string(got.Encode()), "hunter2") {
				t.Errorf("%+v", got)
			}
			if unread := strings.Join(got.Unread, "; "); (c.unread == "") != (unread == "") || !strings.Contains(unread, c.unread) {
				t.Errorf("not read: %q, want %q", unread, c.unread)
			}
		})
	}
	n := newNode(t)
	if err := os.MkdirAll(filepath.Join(n.root, "node/etc/containerd/config.toml"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := n.look("--runtime=containerd://2.1.0", "--runtime-configuration="+n.root+"/node/etc/containerd=/etc/containerd")
	if len(got.Unread) != 1 || !strings.Contains(got.Unread[0], "config.toml") || got.CDI != "" {
		t.Errorf("a directory in its place: %+v", got)
	}
}
