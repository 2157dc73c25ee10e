package edits_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/edits"
)

// procWith writes files below a directory in the place of /proc.
func procWith(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const numbers = "Character devices:\n195 nvidia\n235 nvidia-caps\n\nBlock devices:\n"

// The formats are those of the driver's capabilities (MIG user guide, Device Nodes and Capabilities).
func TestCapabilitiesGivesTheNodesOfAMIGDevice(t *testing.T) {
	const own = "driver/nvidia/capabilities/gpu2/mig/gi5"
	for name, files := range map[string]map[string]string{
		"each its file": {
			"devices": numbers, own + "/access": "DeviceFileMinor: 300\nDeviceFileMode: 256\n",
			own + "/ci0/access": "DeviceFileMinor: 301\n",
		},
		"the table": {"devices": numbers, "driver/nvidia-caps/mig-minors": "config 1\ngpu2/gi5/access 300\ngpu2/gi5/ci0/access 301\n"},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, err := edits.Capabilities{ProcRoot: procWith(t, files), DevRoot: t.TempDir()}.Nodes(2, 5, 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(nodes) != 2 || nodes[0].Path != "/dev/nvidia-caps/nvidia-cap300" || nodes[0].Major != 235 || nodes[0].Minor != 300 ||
				nodes[1].Minor != 301 {
				t.Errorf("%+v", nodes)
			}
		})
	}
}

func TestCapabilitiesNamesTheFileWhenAMinorIsUnknown(t *testing.T) {
	const own = "driver/nvidia/capabilities/gpu0/mig/gi1/access"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"neither file nor table":    {map[string]string{"devices": numbers}, "mig-minors"},
		"a file without a minor":    {map[string]string{own: "DeviceFileMode: 256\n"}, "no line DeviceFileMinor"},
		"a minor that is no number": {map[string]string{own: "DeviceFileMinor: -1\n"}, `"-1"`},
		"not in the table":          {map[string]string{"driver/nvidia-caps/mig-minors": "gpu0/gi11/access 9\n"}, "is not in"},
		"no major":                  {map[string]string{"devices": "", own: "DeviceFileMinor: 7\n"}, "nvidia-cap7"},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, err := edits.Capabilities{ProcRoot: procWith(t, c.files), DevRoot: t.TempDir()}.Nodes(0, 1, 0)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v; want an error with %q", nodes, err, c.want)
			}
		})
	}
}

func TestReadExtraRejectsInvalidEdits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edits.yaml")
	for name, c := range map[string]struct{ text, want string }{
		"an unknown field":     {"environment: [A=b]", "allowed are the fields"},
		"a variable without =": {"env: [A]", "extra container edits"},
		"env":                  {"env: [A=b]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			e, err := edits.ReadExtra(file)
			if c.want == "" {
				if err != nil || len(e.Env) != 1 {
					t.Errorf("%+v (%v)", e, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
				t.Errorf("%v, want an error with %q and the file", err, c.want)
			}
		})
	}
	if e, err := edits.ReadExtra(""); err != nil || len(e.Env) != 0 {
		t.Errorf("no file: %+v (%v)", e, err)
	}
}
