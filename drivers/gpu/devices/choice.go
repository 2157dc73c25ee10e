package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// FormsLabel is the node label whose value is the forms of the node's GPUs, as ParseForms reads it.
const FormsLabel = "gpufabric.io/gpu-forms"

// Precedence lists the sources that decide on the forms of a GPU, the strongest first.
func Precedence() []string {
	return []string{
		"The MIG instances that a MIGLayout or an administrator made on the GPU: it is offered as those alone.",
		"The node's label " + FormsLabel + ".",
		"The rules of the chart's value gpus.forms.nodes whose nodeSelector matches the node; two that match must agree.",
		"The chart's value gpus.forms.default, which is whole where nothing is set.",
		"VGPUProfiles of mode Software that select the GPU add their shares to what comes of this.",
		"What a claim holds stays offered in its form until the claim ends.",
	}
}

// Choice holds the chart's values for the forms in which GPUs are offered. Precedence lists the other sources.
type Choice struct {
	// Default is for nodes that no rule selects.
	Default Forms `json:"default,omitempty"`
	// Nodes are the rules for some nodes. Rules that select the same node must agree.
	Nodes []ChoiceRule `json:"nodes,omitempty"`
	// Passthrough: ModeVFIO may be chosen.
	Passthrough bool `json:"-"`
}

// ChoiceRule gives the GPUs of some nodes their forms.
type ChoiceRule struct {
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
	Forms
}

// ParseChoice reads a Choice from JSON. An empty text is the zero Choice. The error names every mistake.
func ParseChoice(text string) (Choice, error) {
	var c Choice
	if text == "" {
		return c, nil
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return Choice{}, err
	}
	var errs []error
	if err := c.Default.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("default: %w", err))
	}
	for i, r := range c.Nodes {
		if r.NodeSelector == nil {
			errs = append(errs, fmt.Errorf("nodes[%d]: nodeSelector is missing: without one use default", i))
		} else if _, err := metav1.LabelSelectorAsSelector(r.NodeSelector); err != nil {
			errs = append(errs, fmt.Errorf("nodes[%d].nodeSelector: %w", i, err))
		}
		if err := r.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("nodes[%d]: %w", i, err))
		}
	}
	return c, errors.Join(errs...)
}

// Rules returns the forms of the rules.
func (c Choice) Rules() []Forms {
	out := make([]Forms, len(c.Nodes))
	for i, r := range c.Nodes {
		out[i] = r.Forms
	}
	return out
}

// Chosen is the forms of a node's GPUs, and the source of the choice.
type Chosen struct {
	Forms
	// Reason is a CamelCase word for the source: NodeLabel, ChartRule or ChartDefault.
	Reason string
	// By is the same in words.
	By string
}

// Resolve decides for a node with these labels. Its error names the settings that cannot be applied; the node then keeps its forms.
func (c Choice) Resolve(node labels.Set) (Chosen, error) {
	chosen, err := c.resolve(node)
	if err == nil && chosen.mode() == ModeVFIO && !c.Passthrough {
		return Chosen{}, fmt.Errorf("form %s, by %s: the chart's value gpus.passthrough.enabled is false", ModeVFIO, chosen.By)
	}
	return chosen, err
}

func (c Choice) resolve(node labels.Set) (Chosen, error) {
	if value, labelled := node[FormsLabel]; labelled {
		f, err := ParseForms(value)
		if err != nil {
			return Chosen{}, fmt.Errorf("node label %s=%s: %w", FormsLabel, value, err)
		}
		return Chosen{Forms: f, Reason: "NodeLabel", By: fmt.Sprintf("the node's label %s", FormsLabel)}, nil
	}
	var found []int
	for i, r := range c.Nodes {
		selector, err := metav1.LabelSelectorAsSelector(r.NodeSelector)
		if err == nil && r.NodeSelector != nil && selector.Matches(node) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return Chosen{Forms: c.Default, Reason: "ChartDefault", By: "gpus.forms.default of the chart"}, nil
	}
	first := c.Nodes[found[0]]
	if i := slices.IndexFunc(found, func(i int) bool { return !c.Nodes[i].Forms.Equal(first.Forms) }); i >= 0 {
		other := found[i]
		return Chosen{}, fmt.Errorf("gpus.forms.nodes[%d] of the chart is %s and nodes[%d] is %s, and both select this node: narrow one "+
			"of the two selectors, or set the node's label %s",
			found[0], first.Forms, other, c.Nodes[other].Forms, FormsLabel)
	}
	return Chosen{Forms: first.Forms, Reason: "ChartRule", By: fmt.Sprintf("gpus.forms.nodes[%d] of the chart", found[0])}, nil
}
