package fabric

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseClique(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Clique
		wrong      string
	}{
		{"reads the seed's clique", "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766", Clique{"69a19a31-f41c-45a5-8245-579b6bce5bdd", 32766}, ""},
		{"writes the cluster in lower case", "69A19A31-F41C-45A5-8245-579B6BCE5BDD.0", Clique{"69a19a31-f41c-45a5-8245-579b6bce5bdd", 0}, ""},
		{"refuses a cluster without a clique", "69a19a31-f41c-45a5-8245-579b6bce5bdd", Clique{}, "is not a clique"},
		{"refuses a cluster that is no UUID", "rack-1.7", Clique{}, "is not a clique"},
		{"refuses a clique that is no number", "69a19a31-f41c-45a5-8245-579b6bce5bdd.x", Clique{}, `has the clique id "x"`},
		{"refuses a clique beyond 32 bits", "69a19a31-f41c-45a5-8245-579b6bce5bdd.4294967296", Clique{}, "0 to 4294967295"},
		{"refuses nothing", "", Clique{}, "is not a clique"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseClique(c.text)
			compare(t, got, c.want, err, c.wrong)
		})
	}
}

func TestParseMIGProfile(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       MIGProfile
		wrong      string
	}{
		{"reads a plain profile", "3g.40gb", MIGProfile{3, 3, 40, nil}, ""},
		{"reads a media profile", "1g.10gb+me", MIGProfile{1, 1, 10, []string{"me"}}, ""},
		{"reads a compute instance", "1c.3g.40gb", MIGProfile{3, 1, 40, nil}, ""},
		{"reads two attributes", "1g.24gb+me.all,gfx", MIGProfile{1, 1, 24, []string{"me.all", "gfx"}}, ""},
		{"refuses a compute instance larger than its GPU instance", "4c.3g.40gb", MIGProfile{}, "4 slices in a GPU instance of 3"},
		{"refuses eight slices", "8g.80gb", MIGProfile{}, "is not a MIG profile"},
		{"refuses capitals", "3G.40GB", MIGProfile{}, "is not a MIG profile"},
		{"refuses a size of zero", "1g.0gb", MIGProfile{}, "is not a MIG profile"},
		{"refuses a trailing plus", "1g.5gb+", MIGProfile{}, "is not a MIG profile"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseMIGProfile(c.text)
			compare(t, got, c.want, err, c.wrong)
		})
	}
}

func TestMIGLayouts(t *testing.T) {
	t.Run("a whole GPU, halves and seven small ones are among the layouts", func(t *testing.T) {
		layouts, err := MIGLayouts("A100-40GB")
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{}
		for _, l := range layouts {
			have[strings.Join(l, " ")] = true
		}
		for _, want := range []string{"7g.40gb", "4g.20gb 3g.20gb", "3g.20gb 3g.20gb", "2g.10gb 2g.10gb 2g.10gb 1g.10gb",
			strings.TrimSpace(strings.Repeat("1g.5gb ", 7))} {
			if !have[want] {
				t.Errorf("layout %q is missing from %v", want, layouts)
			}
		}
		for _, not := range []string{"4g.20gb 4g.20gb", "3g.20gb", "4g.20gb 2g.10gb"} {
			if have[not] {
				t.Errorf("layout %q does not fit or is not full", not)
			}
		}
	})
	for _, c := range []struct {
		name       string
		model      string
		containing []string
		want       [][]string
		wrong      string
	}{
		{"two halves leave no room", "H100-80GB", []string{"3g.40gb", "3g.40gb"}, [][]string{{"3g.40gb", "3g.40gb"}}, ""},
		{"three halves do not fit", "H100-80GB", []string{"3g.40gb", "3g.40gb", "3g.40gb"}, nil, ""},
		{"the model's name is taken in any case", "h200-141gb", []string{"7g.141gb"}, [][]string{{"7g.141gb"}}, ""},
		{"the media profile comes when asked for", "GB200-186GB", []string{"4g.93gb", "2g.47gb", "1g.23gb+me"},
			[][]string{{"4g.93gb", "2g.47gb", "1g.23gb+me"}}, ""},
		{"an unknown model is refused with those known", "T4", nil, nil, "want one of A100-40GB"},
		{"a profile that the model lacks is refused with those it has", "B200-180GB", []string{"1g.5gb"}, nil, "it has 7g.180gb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := MIGLayouts(c.model, c.containing...)
			compare(t, got, c.want, err, c.wrong)
		})
	}
}

func TestFitSlices(t *testing.T) {
	for _, c := range []struct {
		name                      string
		gpu, memory, cores, split int64
		want                      SliceFit
		wrong                     string
	}{
		{"memory limits four slices of 10 GiB on an L40S", 49140, 10240, 10, 10, SliceFit{4, "memory", 8180, 60}, ""},
		{"cores limit slices of a third", 49140, 1024, 33, 10, SliceFit{3, "cores", 46068, 1}, ""},
		{"the split limits small slices", 49140, 1024, 0, 10, SliceFit{10, "split", 38900, 100}, ""},
		{"refuses a slice larger than the GPU", 16384, 20000, 0, 10, SliceFit{}, "more than the GPU's 16384 MiB"},
		{"refuses more than all cores", 16384, 1024, 101, 10, SliceFit{}, "0 to 100 percent"},
		{"refuses a GPU without memory", 0, 1024, 0, 10, SliceFit{}, "GPU's memory is 0 MiB"},
		{"refuses a slice without memory", 16384, 0, 0, 10, SliceFit{}, "slice's memory is 0 MiB"},
		{"refuses a split of nothing", 16384, 1024, 0, 0, SliceFit{}, "at least 1 slice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FitSlices(c.gpu, c.memory, c.cores, c.split)
			compare(t, got, c.want, err, c.wrong)
		})
	}
}

func TestPoolOfConfig(t *testing.T) {
	const good = `{"periodicUpdateInterval": 300, "configList": [{"resourceName": "a", "rdmaHcaMax": 10, "selectors": {"vendors": ` +
		`["15b3"]}}, {"resourceName": "b", "rdmaHcaMax": -1, "selectors": {"vendors": ["mellanox"]}}]}`
	for _, c := range []struct{ name, text, resource, want, wrong string }{
		{"finds the entry", good, "a", "15b3", ""},
		{"reports every mistake of the entry, with its path", good, "b", "", "configList[1].selectors.vendors[0]"},
		{"names the entries there are", good, "c", "", "it has a, b"},
		{"refuses unknown keys", `{"configList": [{"resourceNmae": "a"}]}`, "a", "", `unknown field "resourceNmae"`},
		{"refuses what is no JSON", `configList: []`, "a", "", "not a config.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := PoolOfConfig(c.text, c.resource)
			vendor := ""
			if err == nil {
				vendor = got.Selectors.Vendors[0]
			}
			compare(t, vendor, c.want, err, c.wrong)
		})
	}
}

func TestParseMIGParted(t *testing.T) {
	for _, c := range []struct{ name, text, wrong string }{
		{"reads a file as mig-parted has it", "version: v1\nmig-configs:\n  all-1g:\n  - devices: all\n    mig-enabled: true\n    " +
			"mig-devices: {1g.5gb: 7}\n", ""},
		{"refuses unknown keys", "version: v1\nmig-configs:\n  x:\n  - devices: all\n    mig-enable: true\n", "mig-enable"},
		{"refuses another version", "version: v2\nmig-configs:\n  x:\n  - devices: all\n    mig-enabled: false\n", "v2"},
		{"refuses instances with MIG off", "version: v1\nmig-configs:\n  x:\n  - devices: [0]\n    mig-enabled: false\n    mig-devices: " +
			"{1g.5gb: 1}\n", "only allowed where mig-enabled is true"},
		{"refuses a file without layouts", "version: v1\n", "no layout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseMIGParted(c.text)
			compare(t, true, true, err, c.wrong)
		})
	}
}

// compare checks a result, or that the error holds the words of wrong.
func compare[T any](t *testing.T, got, want T, err error, wrong string) {
	t.Helper()
	if wrong == "" && err != nil {
		t.Fatal(err)
	}
	if wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
		t.Fatalf("error: got %v, want one with %q", err, wrong)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
