package preflight_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/doctor/preflight"
)

var update = flag.Bool("update", false, "write testdata/answers.txt again; read the difference before it is committed")

// TestAnswersOnVersionsAndRuntimesAreThoseOfTheFile shows what a user reads of each version of Kubernetes, and of each runtime.
func TestAnswersOnVersionsAndRuntimesAreThoseOfTheFile(t *testing.T) {
	var out strings.Builder
	answer := func(title string, checks []preflight.Check, names ...string) {
		fmt.Fprintf(&out, "== %s\n", title)
		for _, name := range names {
			c := only(t, checks, name)
			fmt.Fprintf(&out, "%s: %s: %s\n", c.Name, c.Result, c.Detail)
		}
	}
	for _, version := range [][2]string{{"v1.33.13", ""}, {"v1.34.4", ""}, {"v1.36.3", "35"}, {"v1.36.1", ""},
		{"v1.36.3", ""}, {"v1.37.2", ""}} {
		s := cluster(t)
		s.Server.Version, s.Server.Emulates = version[0], version[1]
		answer(strings.TrimSpace("Kubernetes "+version[0]+" "+version[1]), preflight.Run(s, everything(t), namespace), "Kubernetes version")
	}
	for _, runtime := range []struct {
		name  string
		facts preflight.Facts
	}{
		{"containerd://1.6.36", preflight.Facts{}},
		{"containerd://1.7.27", preflight.Facts{Runtime: "containerd 1.7.27"}},
		{"containerd://1.7.27", preflight.Facts{Runtime: "containerd 1.7.27", CDI: "off", NRI: "off",
			CDIWhy: "containerd 1.7.27 has CDI off where enable_cdi = true is not set"}},
		{"containerd://1.7.27", preflight.Facts{Runtime: "containerd 1.7.27", CDI: "on", NRI: "off"}},
		{"containerd://2.1.0", preflight.Facts{Runtime: "containerd 2.1.0", CDI: "on", NRI: "on", SpecDirs: []string{"/var/cdi"}}},
		{"containerd://2.4.2", preflight.Facts{Runtime: "containerd 2.4.2", CDI: "on", NRI: "on"}},
		{"cri-o://1.34.0", preflight.Facts{Runtime: "cri-o 1.34.0", CDI: "on", NRI: "on"}},
		{"docker://29.0.0", preflight.Facts{}},
	} {
		s := cluster(t)
		s.Nodes[1].Status.NodeInfo.ContainerRuntimeVersion = runtime.name
		says(t, s, "n2", runtime.facts)
		answer(strings.TrimSpace(fmt.Sprintf("%s, CDI %s", runtime.name, runtime.facts.CDI)), preflight.Run(s, everything(t), namespace),
			"container runtimes", "runtime configuration")
	}
	const golden = "testdata/answers.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("answers differ from %s (-file +now); go test -update writes it again:\n%s", golden, diff)
	}
}
