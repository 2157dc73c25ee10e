// Package forms decides in which forms a node's GPUs are offered, from what administrators wrote in several places.
//
// The strongest comes first:
//
//  1. What stands: a GPU that a MIGLayout (or an administrator by hand) has cut is offered as its instances alone. This is a matter of each GPU, and package
//     claims sees to it.
//  2. The node's label gpufabric.io/gpu-forms.
//  3. The rules of the chart's value gpus.forms.nodes whose node selectors match.
//  4. The chart's value gpus.forms.default, which is whole where nothing is set.
//
// VGPUProfiles of mode Software add their shares to whatever comes of that.
package forms

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"gpufabric.io/drivers/gpu/devices"
)

// Label is the node label whose value is the forms of the node's GPUs, as devices.ParseForms reads it.
const Label = "gpufabric.io/gpu-forms"

// Precedence is who decides on the forms of a GPU in words, the strongest first.
func Precedence() []string {
	return []string{
		"The MIG instances that a MIGLayout or an administrator made on the GPU: it is offered as those alone.",
		"The node's label " + Label + ".",
		"The rules of the chart's value gpus.forms.nodes whose nodeSelector matches the node; two that match must agree.",
		"The chart's value gpus.forms.default, which is whole where nothing is set.",
		"VGPUProfiles of mode Software that select the GPU add their shares to what comes of this.",
		"What a claim holds stays offered in its form until the claim ends.",
	}
}

// Config is what the chart's values say.
type Config struct {
	// Default is for nodes that no rule selects.
	Default devices.Forms `json:"default,omitempty"`
	// Nodes are the rules for some nodes. Rules that select the same node must say the same.
	Nodes []Rule `json:"nodes,omitempty"`
}

// Rule gives the GPUs of some nodes their forms.
type Rule struct {
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
	devices.Forms
}

// Parse reads a Config as JSON. An empty text is the zero Config. Every mistake is named.
func Parse(text string) (Config, error) {
	var c Config
	if text == "" {
		return c, nil
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return Config{}, err
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

// Answer is which forms a node's GPUs have, and by whose word.
type Answer struct {
	devices.Forms
	// Reason is a CamelCase word for whose word it is: NodeLabel, ChartRule or ChartDefault.
	Reason string
	// By is the same in words.
	By string
}

// Resolve decides for a node with these labels. Its error names what cannot be followed; the node then keeps the forms that it has.
func (c Config) Resolve(node labels.Set) (Answer, error) {
	if value, labelled := node[Label]; labelled {
		f, err := devices.ParseForms(value)
		if err != nil {
			return Answer{}, fmt.Errorf("node label %s=%s: %w", Label, value, err)
		}
		return Answer{Forms: f, Reason: "NodeLabel", By: fmt.Sprintf("the node's label %s", Label)}, nil
	}
	var found []int
	for i, r := range c.Nodes {
		selector, err := metav1.LabelSelectorAsSelector(r.NodeSelector)
		if err == nil && r.NodeSelector != nil && selector.Matches(node) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return Answer{Forms: c.Default, Reason: "ChartDefault", By: "gpus.forms.default of the chart"}, nil
	}
	first := c.Nodes[found[0]]
	if i := slices.IndexFunc(found, func(i int) bool { return !c.Nodes[i].Forms.Equal(first.Forms) }); i >= 0 {
		other := found[i]
		return Answer{}, fmt.Errorf("gpus.forms.nodes[%d] of the chart says %s and nodes[%d] says %s, and both select this node: narrow one of the two selectors, or set the node's label %s",
			found[0], first.Forms, other, c.Nodes[other].Forms, Label)
	}
	return Answer{Forms: first.Forms, Reason: "ChartRule", By: fmt.Sprintf("gpus.forms.nodes[%d] of the chart", found[0])}, nil
}
