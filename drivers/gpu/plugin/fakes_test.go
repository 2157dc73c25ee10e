package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// fakeNode renders a fake node of a profile and runs the role on it.
func fakeNode(t *testing.T, name string) *bench {
	t.Helper()
	root := renderFake(t, name)
	return benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root)
}

// renderFake renders a fake node of a profile, and returns its root.
func renderFake(t *testing.T, name string) string {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestEveryFakeNodesGPUsAreHandedOut publishes, prepares and unprepares one device of each form, on the machine of every profile.
func TestEveryFakeNodesGPUsAreHandedOut(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := profile.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			gpus := len(p.Node(0).GPUs)
			if gpus == 0 {
				return // there is no GPU to give out, so the role cannot run
			}
			b := fakeNode(t, name)
			count := map[string]int{}
			var mig string
			clique := "" // a machine whose fabric ends at its own switches has no clique
			if f := p.Fabric; f != nil && strings.Trim(f.ClusterUUID, "0-") != "" {
				clique = fmt.Sprintf("%s.%d", f.ClusterUUID, f.CliqueID)
			}
			for _, s := range b.slices() {
				for _, d := range s.Spec.Devices {
					kind := *d.Attributes["type"].StringValue
					count[kind]++
					if kind == "mig" && strings.HasPrefix(d.Name, "gpu-1-") {
						mig = d.Name
					}
					got := ""
					if a := d.Attributes[qualified("cliqueID")]; a.StringValue != nil {
						got = *a.StringValue
					}
					if got != clique {
						t.Errorf("%s is in clique %q, want %q", d.Name, got, clique)
					}
					for _, attribute := range []string{"productName", "architecture", "brand"} {
						if _, ok := d.Attributes[qualified(attribute)]; !ok {
							t.Errorf("%s has no %s", d.Name, attribute)
						}
					}
				}
			}
			if count["gpu"] != gpus || count["shared"] != gpus {
				t.Errorf("%d GPUs are published as %v", gpus, count)
			}
			forms := []device{
				{name: "gpu-0"},
				{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "1Gi", "cores": "10"}},
			}
			if p.GPUs.Model.Integrated {
				forms[1].capacity = map[string]string{"cores": "10"} // it has no memory of its own to share
			}
			if mig != "" {
				forms = append(forms, device{name: mig})
			}
			for _, form := range forms {
				c := b.claim("u-"+form.name, nil, form)
				e := b.edits(c, b.mustPrepare(c)...)
				if !strings.Contains(nodes(e), "nvidia"+form.name[4:5]) {
					t.Errorf("%s gets the device nodes %s", form.name, nodes(e))
				}
				if !slices.Contains(e.Env, "NVIDIA_VISIBLE_DEVICES=void") {
					t.Errorf("%s gets the environment %v", form.name, e.Env)
				}
				if problem := b.unprepare(c); problem != "" {
					t.Error(problem)
				}
			}
		})
	}
}
