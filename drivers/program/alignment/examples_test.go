package alignment_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpufabric.io/fakes/profile"
)

const manifests = "../../../examples/manifests"

// readManifest returns the pool of an example and the specs of its claims, and whether they request whole GPUs and NICs alone.
func readManifest(t *testing.T, path string) (m manifest, claims []resourceapi.ResourceClaimSpec, whole bool) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole = true
	for _, document := range strings.Split(string(content), "\n---\n") {
		var kind metav1.TypeMeta
		var claim resourceapi.ResourceClaim
		var template resourceapi.ResourceClaimTemplate
		err := yaml.Unmarshal([]byte(document), &kind)
		switch kind.Kind {
		case "RDMAPool":
			err = yaml.UnmarshalStrict([]byte(document), &m.pool)
		case "ResourceClaim":
			err = yaml.UnmarshalStrict([]byte(document), &claim)
			claims = append(claims, claim.Spec)
		case "ResourceClaimTemplate":
			err = yaml.UnmarshalStrict([]byte(document), &template)
			claims = append(claims, template.Spec.Spec)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	for _, claim := range claims {
		for _, r := range claim.Devices.Requests {
			if r.Exactly != nil && r.Exactly.DeviceClassName != "gpu.nvidia.com" && r.Exactly.DeviceClassName != "rdma.gpufabric.io" {
				whole = false
			}
		}
	}
	return m, claims, whole
}

// TestExamplesAreAllocatedOnFakeMachines allocates the claims of each example that needs whole GPUs and NICs alone, on every fake
// machine. With GPUFABRIC_UPDATE=1 it writes the table of docs/reports/examples.md.
func TestExamplesAreAllocatedOnFakeMachines(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(manifests, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	var table strings.Builder
	table.WriteString("| example | allocated on | not on |\n|---|---|---|\n")
	machines := profile.Names()
	for _, file := range files {
		m, claims, whole := readManifest(t, file)
		if !whole || len(claims) == 0 {
			continue
		}
		var on, off []string
		for _, name := range machines {
			x := newMachine(t, name, m)
			fits := true
			for _, claim := range claims {
				fits = fits && x.allocate(*claim.DeepCopy()) != nil
			}
			if fits {
				on = append(on, name)
			} else {
				off = append(off, name)
			}
		}
		base := filepath.Base(file)
		fmt.Fprintf(&table, "| [%s](../../examples/manifests/%s) | %s | %s |\n", base, base, strings.Join(on, ", "), strings.Join(off, ", "))
		if base == "gpu-four-with-nics.yaml" && !slices.Contains(on, "gb200-nvl72") {
			t.Errorf("%s is not allocated on gb200-nvl72", base)
		}
	}
	writeTable(t, table.String())
}

// writeTable compares the table with the page, or writes it there.
func writeTable(t *testing.T, table string) {
	t.Helper()
	const path, begin, end = "../../../docs/reports/examples.md", "<!-- examples -->\n", "<!-- end of examples -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	want := before + begin + table + end + after
	if want == string(page) {
		return
	}
	if os.Getenv("GPUFABRIC_UPDATE") == "" {
		t.Fatalf("%s has another table: run GPUFABRIC_UPDATE=1 go test ./program/alignment -run %s\n%s", path, t.Name(), table)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A ConnectX-8 on Grace has a data-direct function below the GPU's switch, so its claims are aligned by the first rung.
func TestNICsOfGraceAlignByTheirDataDirectFunctions(t *testing.T) {
	m := readExample(t)
	x := newMachine(t, "gb300-nvl72", m)
	for range len(x.gpus) {
		results := x.allocate(*m.claim.Spec.Spec.DeepCopy())
		if results == nil {
			t.Fatal("no pair")
		}
		pair := x.pairs(results, "")[0]
		if pair.rung != "switch" {
			t.Errorf("%s and the GPU %+v are by %s", pair.nic.HCA.Name, pair.gpu.Place, pair.rung)
		}
		if err := pair.nearest(); err != nil {
			t.Error(err)
		}
	}
}
