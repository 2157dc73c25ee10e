package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestVGPUProfileErrorNamesFieldAndValue(t *testing.T) {
	q := func(text string) *resource.Quantity { v := resource.MustParse(text); return &v }
	for name, c := range map[string]struct {
		spec VGPUProfileSpec
		want string
	}{
		"software": {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("10Gi"), Cores: 25, Split: 4, Policy: VGPUSpread,
			Namespaces: []string{"a"}}, ""},
		"mig by cores":            {VGPUProfileSpec{Mode: VGPUMIG, Cores: 10}, ""},
		"exclusive":               {VGPUProfileSpec{Mode: VGPUExclusive}, ""},
		"no mode":                 {VGPUProfileSpec{}, `spec.mode: Unsupported value: ""`},
		"an unknown mode":         {VGPUProfileSpec{Mode: "mig"}, `spec.mode: Unsupported value: "mig"`},
		"software without memory": {VGPUProfileSpec{Mode: VGPUSoftware}, "spec.memory: Required value"},
		"mig without anything":    {VGPUProfileSpec{Mode: VGPUMIG}, "spec.memory: Required value"},
		"exclusive with cores":    {VGPUProfileSpec{Mode: VGPUExclusive, Cores: 5}, "spec.cores: Forbidden"},
		"mig with split":          {VGPUProfileSpec{Mode: VGPUMIG, Cores: 5, Split: 2}, "spec.split: Forbidden"},
		"mig with a node selector": {VGPUProfileSpec{Mode: VGPUMIG, Cores: 5, NodeSelector: &metav1.LabelSelector{}},
			"spec.nodeSelector: Forbidden"},
		"negative memory":              {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("-1Gi")}, `spec.memory: Invalid value: "-1Gi"`},
		"more memory than any GPU has": {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("2Ti")}, "at most 1Ti"},
		"more than all cores":          {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("1Gi"), Cores: 101}, "spec.cores: Invalid value: 101"},
		"negative cores":               {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("1Gi"), Cores: -1}, "spec.cores: Invalid value: -1"},
		"a split of 1000":              {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("1Gi"), Split: 1000}, "spec.split: Invalid value: 1000"},
		"an unknown policy": {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("1Gi"), Policy: "pack"},
			`spec.policy: Unsupported value: "pack"`},
		"an empty product name": {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("1Gi"), ProductNames: []string{""}},
			"spec.productNames[0]: Invalid value"},
		"a namespace that is none": {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("1Gi"), Namespaces: []string{"A_b"}},
			`spec.namespaces[0]: Invalid value: "A_b"`},
		"a namespace twice": {VGPUProfileSpec{Mode: VGPUSoftware, Memory: q("1Gi"), Namespaces: []string{"a", "a"}},
			"spec.namespaces[1]: Duplicate value"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.spec.Validate(field.NewPath("spec")).ToAggregate()
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
