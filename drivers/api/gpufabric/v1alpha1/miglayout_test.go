package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// partedFile is a configuration in mig-parted's form, with both forms of each field.
const partedFile = `
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  mixed:
  - device-filter: ["0x20B010DE", "0x20B210DE"]
    devices: [0, 1]
    mig-enabled: true
    mig-devices:
      "1g.5gb": 2
      "2g.10gb": 1
      "3g.20gb": 1
  - device-filter: "0x233010DE"
    devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb+me": 1}
`

func TestMigPartedsFileIsAcceptedAsItIs(t *testing.T) {
	spec := MIGLayoutSpec{Layout: "mixed"}
	if err := yaml.UnmarshalStrict([]byte(partedFile), &spec.Config); err != nil {
		t.Fatal(err)
	}
	if errs := spec.Validate(field.NewPath("spec")); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	raw, err := json.Marshal(spec.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"devices":"all"`, `"devices":[0,1]`, `"device-filter":"0x233010DE"`,
		`"device-filter":["0x20B010DE","0x20B210DE"]`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("written again without %s: %s", want, raw)
		}
	}
}

func TestMIGLayoutErrorNamesFieldAndValue(t *testing.T) {
	for name, c := range map[string]struct{ layout, config, want string }{
		"a layout that config lacks": {"other", partedFile,
			`spec.layout: Invalid value: "other": config has no layout of that name; it has all-disabled, mixed`},
		"another version": {"a", `{"version":"v2","mig-configs":{"a":[]}}`, `spec.config.version: Unsupported value: "v2"`},
		"no layouts":      {"a", `{"version":"v1","mig-configs":{}}`, `spec.config.mig-configs: Required value`},
		"a word for devices": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":"some","mig-enabled":false}]}}`,
			`"some": allowed are all`},
		"no devices": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":[],"mig-enabled":false}]}}`,
			`devices: Required value`},
		"a negative index": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":[-1],"mig-enabled":false}]}}`,
			`devices[0]: Invalid value: -1`},
		"an index twice": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":[1,1],"mig-enabled":false}]}}`,
			`devices[1]: Duplicate value: 1`},
		"devices without MIG": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":"all","mig-enabled":false,"mig-devices":{"1g.5gb":1}}]}}`,
			`mig-devices: Forbidden`},
		"a profile that is none": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":"all","mig-enabled":true,"mig-devices":{"1g":1}}]}}`,
			`mig-devices[1g]: Invalid value: "1g"`},
		"no instances of a profile": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":"all","mig-enabled":true,` +
			`"mig-devices":{"1g.5gb":0}}]}}`, `must be between 1 and 8`},
		"a filter that is no PCI ID": {"a", `{"version":"v1","mig-configs":{"a":[{"device-filter":"A100","devices":"all","mig-enabled":true}]}}`,
			`device-filter[0]: Invalid value: "A100"`},
		"a filter that is a number": {"a", `{"version":"v1","mig-configs":{"a":[{"device-filter":7,"devices":"all","mig-enabled":true}]}}`,
			`7 is not a string or a list`},
		"a key that mig-parted lacks": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":"all","mig-enabled":true,"colour":"red"}]}}`,
			`unknown field "colour"`},
		"mig-enabled that is no answer": {"a", `{"version":"v1","mig-configs":{"a":[{"devices":"all","mig-enabled":"yes"}]}}`, `mig-enabled`},
	} {
		t.Run(name, func(t *testing.T) {
			spec := MIGLayoutSpec{Layout: c.layout}
			err := yaml.UnmarshalStrict([]byte(c.config), &spec.Config)
			if err == nil {
				err = spec.Validate(field.NewPath("spec")).ToAggregate()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
