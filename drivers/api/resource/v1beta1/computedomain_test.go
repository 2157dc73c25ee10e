package v1beta1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestComputeDomainErrorNamesTheField(t *testing.T) {
	right := ComputeDomainSpec{NumNodes: 2, Channel: ComputeDomainChannelSpec{
		ResourceClaimTemplate: ComputeDomainResourceClaimTemplate{Name: "rack-channel"}}}
	for name, test := range map[string]struct {
		spoil func(*ComputeDomainSpec)
		want  string // the field; empty: nothing is refused
	}{
		"as it should be":     {func(*ComputeDomainSpec) {}, ""},
		"no nodes":            {func(s *ComputeDomainSpec) { s.NumNodes = 0 }, ""},
		"every channel":       {func(s *ComputeDomainSpec) { s.Channel.AllocationMode = AllocationModeAll }, ""},
		"fewer than no nodes": {func(s *ComputeDomainSpec) { s.NumNodes = -1 }, "spec.numNodes"},
		"no template": {func(s *ComputeDomainSpec) { s.Channel.ResourceClaimTemplate.Name = "" },
			"spec.channel.resourceClaimTemplate.name"},
		"two dots in a row": {func(s *ComputeDomainSpec) { s.Channel.ResourceClaimTemplate.Name = "a..b" },
			"spec.channel.resourceClaimTemplate.name"},
		"a mode that is unknown": {func(s *ComputeDomainSpec) { s.Channel.AllocationMode = "Some" }, "spec.channel.allocationMode"},
	} {
		spec := right
		test.spoil(&spec)
		var fields []string
		for _, err := range spec.Validate(field.NewPath("spec")) {
			fields = append(fields, err.Field)
		}
		if got := strings.Join(fields, " "); got != test.want {
			t.Errorf("%s: refused %q, want %q", name, got, test.want)
		}
	}
}
