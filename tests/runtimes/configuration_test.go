//go:build runtimes

package runtimes_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"gpufabric.io/drivers/doctor/machine"
	"gpufabric.io/drivers/doctor/preflight"
)

// Tables of the CRI plugin and of NRI, as the versions of containerd's configuration name them, and what they may contain.
const (
	cri2  = "[plugins.\"io.containerd.grpc.v1.cri\"]\n"
	cri3  = "[plugins.'io.containerd.cri.v1.runtime']\n"
	nri   = "[plugins.\"io.containerd.nri.v1.nri\"]\n"
	on    = "enable_cdi = true\n"
	off   = "enable_cdi = false\n"
	drops = "imports = [\"conf.d/*.toml\"]\n"
	named = "cdi_spec_dirs = [\"/var/cdi/static\", \"/var/cdi/dynamic\"]\n"
)

// configurations are files below a containerd's directory of configuration, by a name. ETC stands for the directory. The version of the
// configuration becomes the first line of each that does not have one.
var configurations = map[string]map[string]string{
	"nothing":                      {"config.toml": ""},
	"CDI on":                       {"config.toml": cri2 + on},
	"CDI off":                      {"config.toml": cri2 + off},
	"CDI on, under the new name":   {"config.toml": cri3 + on},
	"CDI off, under the new name":  {"config.toml": cri3 + off},
	"both names":                   {"config.toml": cri2 + on + cri3 + off},
	"both names, the other way":    {"config.toml": cri2 + off + cri3 + on},
	"another table":                {"config.toml": cri2 + "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" + on},
	"directories":                  {"config.toml": cri2 + on + named},
	"directories, the new name":    {"config.toml": cri3 + named},
	"no directories":               {"config.toml": cri2 + on + "cdi_spec_dirs = []\n"},
	"no directories, the new name": {"config.toml": cri3 + "cdi_spec_dirs = []\n"},
	"NRI on":                       {"config.toml": nri + "disable = false\n"},
	"NRI off":                      {"config.toml": nri + "disable = true\n"},
	"indented":                     {"config.toml": "[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    enable_cdi = true # on\n"},
	"dotted keys":                  {"config.toml": "[plugins]\n\"io.containerd.grpc.v1.cri\".enable_cdi = true\n"},
	"dotted keys of the root":      {"config.toml": "plugins.\"io.containerd.grpc.v1.cri\".enable_cdi = true\n"},
	"inline tables":                {"config.toml": "[plugins]\n\"io.containerd.grpc.v1.cri\" = { enable_cdi = true }\n"},
	"quoted key":                   {"config.toml": cri2 + "\"enable_cdi\" = true\n"},
	"lines in a string":            {"config.toml": cri2 + "sandbox_image = \"\"\"a\nenable_cdi = true\n\"\"\"\n"},
	"a comma in a directory":       {"config.toml": cri2 + on + "cdi_spec_dirs = ['/a,b']\n"},
	"import of a directory": {"config.toml": "imports = [\"ETC/conf.d/*.toml\"]\n",
		"conf.d/10.toml": cri2 + on},
	"import of the new name": {"config.toml": "imports = [\"ETC/conf.d/*.toml\"]\n",
		"conf.d/10.toml": cri3 + off},
	"import by a relative path": {"config.toml": drops, "conf.d/10.toml": cri2 + on},
	"import of the later file":  {"config.toml": drops, "conf.d/10.toml": cri2 + on, "conf.d/20.toml": cri2 + off},
	"import replaces the table": {"config.toml": drops + cri2 + on, "conf.d/10.toml": cri2 + "max_container_log_line_size = 1\n"},
	"import replaces the table by one below it": {"config.toml": drops + cri2 + on,
		"conf.d/10.toml": "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n"},
	"import of another plugin": {"config.toml": drops + cri2 + on, "conf.d/10.toml": nri + "disable = true\n"},
	"import of an import": {"config.toml": "imports = [\"a.toml\", \"b.toml\"]\n",
		"a.toml": "imports = [\"c.toml\"]\n", "b.toml": cri2 + on, "c.toml": cri2 + off},
	"import in a circle":                     {"config.toml": "imports = [\"config.toml\"]\n" + cri2 + on},
	"import of directories beside the table": {"config.toml": drops + cri2 + on, "conf.d/10.toml": cri2 + named},
	"import without a match":                 {"config.toml": drops + cri2 + on},
	"conf.d that is not imported":            {"config.toml": cri2 + off, "conf.d/10.toml": cri2 + on},
	"a drop-in of an older version": {"config.toml": "imports = [\"old.toml\"]\n" + cri2 + on,
		"old.toml": "version = 1\n" + cri2 + off},
	"names of version 1": {"config.toml": "version = 1\n[plugins.cri]\n" + on + named +
		"[plugins.nri]\ndisable = false\n"},
	"names of version 1 and CDI off": {"config.toml": "version = 1\n[plugins.cri]\n" + off + cri2 + on},
	"directories in two files": {"config.toml": drops + cri2 + on + named,
		"conf.d/10.toml": cri2 + on + "cdi_spec_dirs = ['/x']\n"},
	"no directories in the later file": {"config.toml": drops + cri2 + on + named, "conf.d/10.toml": cri2 + on + "cdi_spec_dirs = []\n"},
	"the new name before the old one":  {"config.toml": drops + cri3 + off, "conf.d/10.toml": cri2 + on},
	"the old name before the new one":  {"config.toml": drops + cri2 + off, "conf.d/10.toml": cri3 + on},
	"NRI in two files": {"config.toml": drops + nri + "disable = true\n",
		"conf.d/10.toml": nri + "socket_path = \"/x\"\n"},
	"NRI on in the later file": {"config.toml": drops + nri + "disable = true\n", "conf.d/10.toml": nri + "disable = false\n"},
}

// TestDoctorReadsConfigurationAsContainerdDoes compares the doctor's reading of containerd's files with that of containerd itself, for each
// version of containerd and each version of its configuration.
func TestDoctorReadsConfigurationAsContainerdDoes(t *testing.T) {
	for _, r := range releases(t) {
		versions := []string{"", "version = 2\n"} // containerd 1.7 does not start with version 3
		if !r.before2() {
			versions = append(versions, "version = 3\n", "version = 4\n")
		}
		for _, version := range versions {
			for _, name := range slices.Sorted(maps.Keys(configurations)) {
				title := strings.Join([]string{r.version, strings.TrimSpace(version), name}, " ")
				t.Run(title, func(t *testing.T) {
					directory := place(t)
					etc := filepath.Join(directory, "etc")
					for file, text := range configurations[name] {
						if !strings.HasPrefix(text, "version") {
							text = version + text
						}
						write(t, filepath.Join(etc, file), strings.ReplaceAll(text, "ETC", etc))
					}
					compare(t, r, directory)
				})
			}
		}
	}
}

// write writes a file, and makes its directory.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// look is what the doctor's Job reports of a node with that configuration.
func look(t *testing.T, r release, directory string) preflight.Facts {
	t.Helper()
	etc := filepath.Join(directory, "etc")
	place := machine.Place{Runtime: r.runtime(), Configuration: etc + "=" + etc}
	place.SysfsRoot, place.DevRoot, place.ProcDevices, place.DriverRoot = directory, directory, filepath.Join(directory, "devices"), directory
	facts := machine.Look(t.Context(), place)
	facts.Unread = slices.DeleteFunc(facts.Unread, func(text string) bool { return !strings.Contains(text, "configuration") })
	return facts
}

func compare(t *testing.T, r release, directory string) {
	t.Helper()
	facts := look(t, r, directory)
	text, err := r.dump(t, directory)
	if err != nil {
		t.Fatal(err)
	}
	var dumped struct {
		Plugins map[string]struct {
			EnableCDI *bool    `toml:"enable_cdi"`
			Dirs      []string `toml:"cdi_spec_dirs"`
			Disable   bool     `toml:"disable"`
		} `toml:"plugins"`
	}
	if _, err := toml.Decode(text, &dumped); err != nil {
		t.Fatal(err)
	}
	name := "io.containerd.cri.v1.runtime"
	if r.before2() {
		name = "io.containerd.grpc.v1.cri"
	}
	plugin, ok := dumped.Plugins[name]
	if !ok {
		t.Fatalf("containerd dumps no %s:\n%s", name, text)
	}
	word := map[bool]string{true: "on", false: "off"}
	if plugin.EnableCDI == nil {
		t.Fatalf("containerd dumps no enable_cdi of %s:\n%s", name, text)
	}
	if want := word[*plugin.EnableCDI && len(plugin.Dirs) > 0]; facts.CDI != want {
		t.Errorf("the doctor reads CDI %q, containerd %q (%v)", facts.CDI, want, facts.Unread)
	}
	if want := word[!dumped.Plugins["io.containerd.nri.v1.nri"].Disable]; facts.NRI != want {
		t.Errorf("the doctor reads NRI %q, containerd %q (%v)", facts.NRI, want, facts.Unread)
	}
	if !slices.Equal(facts.SpecDirs, plugin.Dirs) {
		t.Errorf("the doctor reads the directories %q, containerd %q (%v)", facts.SpecDirs, plugin.Dirs, facts.Unread)
	}
}
