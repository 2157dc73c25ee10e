package v1alpha1

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func TestMIGLayoutHasExactlyOneOfConfigAutoAndGPUs(t *testing.T) {
	const gpu = `{uuid: GPU-1, instances: [{profile: 3g.40gb, start: 0}, {profile: 1g.10gb, start: 4}], withdrawn: [gpu-0-mig-1g10gb-19-4]}`
	for name, c := range map[string]struct{ spec, want string }{
		"auto": {`{auto: {shapes: [{profile: whole}, {profile: 1g.10gb, reserve: {min: 1, max: 4}, max: 40}]}}`, ""},
		"gpus": {`{gpus: [` + gpu + `, {uuid: GPU-2}]}`, ""},
		"none": {`{nodeSelector: {}}`, "must have exactly one of config (with layout), auto and gpus"},
		"two":  {`{auto: {shapes: [{profile: whole}]}, gpus: [{uuid: GPU-1}]}`, "must have exactly one"},
		"three": {`{layout: a, config: {version: v1, mig-configs: {a: []}}, gpus: [{uuid: GPU-1}]}`,
			"must have exactly one"},
		"no shapes": {`{auto: {}}`, "spec.auto.shapes: Required value"},
		"a shape twice": {`{auto: {shapes: [{profile: whole}, {profile: whole}]}}`,
			`spec.auto.shapes[1].profile: Duplicate value: "whole"`},
		"a shape of no kind": {`{auto: {shapes: [{profile: half}]}}`,
			`spec.auto.shapes[0].profile: Invalid value: "half": must be whole, or a MIG profile`},
		"a reserve upside down":       {`{auto: {shapes: [{profile: whole, reserve: {min: 3, max: 2}}]}}`, "min must not exceed max"},
		"a reserve above the ceiling": {`{auto: {shapes: [{profile: whole, reserve: {min: 3}, max: 2}]}}`, "spec.auto.shapes[0].reserve.min"},
		"a negative ceiling":          {`{auto: {shapes: [{profile: whole, max: -1}]}}`, "must be between 0 and 100000"},
		"a GPU twice":                 {`{gpus: [{uuid: GPU-1}, {uuid: GPU-1}]}`, `spec.gpus[1].uuid: Duplicate value: "GPU-1"`},
		"a GPU without UUID":          {`{gpus: [{}]}`, "spec.gpus[0].uuid: Required value"},
		"an instance outside": {`{gpus: [{uuid: GPU-1, instances: [{profile: 1g.10gb, start: 16}]}]}`,
			"must be a memory slice, 0 to 15"},
		"an instance of no kind": {`{gpus: [{uuid: GPU-1, instances: [{profile: whole, start: 0}]}]}`, "must be a MIG profile"},
		"an instance twice": {`{gpus: [{uuid: GPU-1, instances: [{profile: 1g.10gb, start: 0}, {profile: 1g.10gb, start: 0}]}]}`,
			"Duplicate value"},
	} {
		t.Run(name, func(t *testing.T) {
			var spec MIGLayoutSpec
			if err := yaml.UnmarshalStrict([]byte(c.spec), &spec); err != nil {
				t.Fatal(err)
			}
			err := spec.Validate(field.NewPath("spec")).ToAggregate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestMIGLayoutByDemandOfExamplesIsValid(t *testing.T) {
	text, err := os.ReadFile("../../../../examples/manifests/mig-by-demand.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var l MIGLayout
	if err := yaml.UnmarshalStrict(text, &l); err != nil {
		t.Fatal(err)
	}
	if errs := l.Spec.Validate(field.NewPath("spec")); len(errs) > 0 || l.Spec.Auto == nil || len(l.Spec.Auto.Shapes) != 3 {
		t.Errorf("%v", errs.ToAggregate())
	}
}

func TestMIGLayoutCutsEndWhenNodeReportsThem(t *testing.T) {
	target := []MIGLayoutInstance{{Profile: "1g.10gb", Start: 4}, {Profile: "3g.40gb"}}
	reported := []MIGLayoutInstance{{Profile: "3g.40gb"}, {Profile: "1g.10gb", Start: 4}}
	for name, test := range map[string]struct {
		state    MIGLayoutState
		observed int64
		has      []MIGLayoutInstance
		progress bool
	}{
		"applied":                  {MIGLayoutApplied, 2, reported, false},
		"applied, another layout":  {MIGLayoutApplied, 2, nil, true},
		"of an earlier generation": {MIGLayoutApplied, 1, reported, true},
		"waiting":                  {MIGLayoutWaiting, 2, reported, true},
		"failed":                   {MIGLayoutFailed, 2, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := &MIGLayout{}
			l.Generation = 2
			if err := l.SetCuts([]MIGCut{{UUID: "GPU-1", Device: "gpu-0", Instances: target, Reason: strings.Repeat("é", 300)}}); err != nil {
				t.Fatal(err)
			}
			l.Status.Nodes = []MIGLayoutNode{{ObservedGeneration: test.observed, GPUs: []MIGNodeGPU{
				{UUID: "GPU-2", State: MIGLayoutFailed}, {UUID: "GPU-1", State: test.state, Instances: test.has}}}}
			if cuts := l.Cuts(); (len(cuts) == 1) != test.progress {
				t.Errorf("the cuts in progress are %+v", cuts)
			}
			if err := l.SetCuts(nil); err != nil || len(l.Annotations) > 0 {
				t.Errorf("%v, annotations %v", err, l.Annotations)
			}
		})
	}
	l := &MIGLayout{}
	l.Annotations = map[string]string{migCutsAnnotation: "[1"}
	if cuts := l.Cuts(); cuts != nil {
		t.Errorf("somebody's text is read as %+v", cuts)
	}
}
