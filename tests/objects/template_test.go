package objects_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/fabric/nodetemplate"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/tests/objects"
)

// write writes the objects of a profile's first node into a file.
func write(t *testing.T, name string) string {
	t.Helper()
	var out strings.Builder
	if err := objects.Make(t.Context(), objects.Options{Profile: load(t, name), Nodes: 1, Driver: objects.GPUFabric},
		func(object runtime.Object) error {
			text, err := yaml.Marshal(object)
			fmt.Fprintf(&out, "---\n%s", text)
			return err
		}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTemplateOfEachProfileIsOfferedInEachForm(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			node := load(t, name).Node(0)
			gpus, path := len(node.GPUs), write(t, name)
			if gpus == 0 && len(node.NICs) == 0 {
				t.Skipf("profile %s has neither GPUs nor NICs, so nothing is published for it", name)
			}
			for _, output := range []string{"objects", "karpenter", "cluster-api"} {
				var out strings.Builder
				command := nodetemplate.Command(host.Host{Stdout: &out})
				command.SetArgs([]string{"--file", path, "-o", output, "--name", "big"})
				command.SilenceUsage, command.SilenceErrors = true, true
				err := command.ExecuteContext(t.Context())
				if output == "cluster-api" && gpus == 0 {
					if err == nil || !strings.Contains(err.Error(), "no GPU") {
						t.Errorf("%s without GPUs: error %v", output, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", output, err)
					continue
				}
				if strings.Contains(out.String(), node.Hostname) {
					t.Errorf("%s names node %s, from which it was made", output, node.Hostname)
				}
				want := map[string]string{"objects": fmt.Sprintf("name: gpu-%d\n", gpus-1), "karpenter": fmt.Sprintf("name: gpu-%d\n", gpus-1),
					"cluster-api": fmt.Sprintf("gpu-count: %q", fmt.Sprint(gpus))}[output]
				if gpus > 0 && !strings.Contains(out.String(), want) {
					t.Errorf("%s lacks %q", output, want)
				}
			}
		})
	}
}
