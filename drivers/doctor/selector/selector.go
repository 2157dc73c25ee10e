// Package selector evaluates the CEL selectors of DeviceClasses and claims by the scheduler's own library.
package selector

import (
	"context"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

// Verdict is the result of a selector for a device.
type Verdict int

// The verdicts.
const (
	// No: the device is not selected.
	No Verdict = iota
	// Yes: it is.
	Yes
	// Failed: the evaluation returns an error, and the claim is then allocated nowhere.
	Failed
	// Unknown: the expression cannot be compiled, or is too expensive to be evaluated for every device.
	Unknown
)

// String is a word.
func (v Verdict) String() string { return [...]string{"no", "yes", "failed", "unknown"}[v] }

// maxCost bounds one evaluation, in CEL's units of cost: usual selectors need fewer than 100. The scheduler allows 1,000,000, which takes
// about 0.1 s, and a doctor evaluates for every device of a cluster.
const maxCost = 10_000

// Selector is a compiled selector.
type Selector struct {
	// Text is the expression.
	Text     string
	compiled cel.CompilationResult
	// bad is why the expression cannot be evaluated.
	bad string
	// parts are the operands of its outermost &&; without any, the one part is the expression itself.
	parts []part
}

func compile(text string) cel.CompilationResult {
	features := cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true}
	return cel.GetCompiler(features).CompileCELExpression(text, cel.Options{CostLimit: ptr.To[uint64](maxCost), DisableCostEstimation: true})
}

// Read compiles an expression. One that cannot be compiled selects with Unknown.
func Read(text string) Selector {
	if len(text) > resourceapi.CELSelectorExpressionMaxLength {
		return Selector{Text: text[:resourceapi.CELSelectorExpressionMaxLength], bad: "an expression longer than the API allows"}
	}
	s := Selector{Text: text, compiled: compile(text)}
	if s.compiled.Error != nil {
		s.bad = s.compiled.Error.Detail
		return s
	}
	s.parts = partsOf(text, s.compiled.Environment)
	return s
}

// Judge evaluates the selector for a driver's device. why is the error, or the unknown attribute.
func (s Selector) Judge(driver string, device *resourceapi.Device) (verdict Verdict, why string) {
	if s.bad != "" {
		return Unknown, s.bad
	}
	return judge(s.compiled, driver, device)
}

func judge(compiled cel.CompilationResult, driver string, device *resourceapi.Device) (Verdict, string) {
	selects, _, err := compiled.DeviceMatches(context.Background(), cel.Device{Driver: driver, Attributes: device.Attributes,
		Capacity: device.Capacity, AllowMultipleAllocations: device.AllowMultipleAllocations})
	switch {
	case err != nil && strings.Contains(err.Error(), "cost limit exceeded"):
		return Unknown, "an expression that costs too much to be evaluated for every device"
	case err != nil:
		return Failed, err.Error()
	case selects:
		return Yes, ""
	}
	return No, ""
}
