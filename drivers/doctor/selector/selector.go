// Package selector evaluates the CEL selectors of DeviceClasses and claims in their usual forms: comparisons of a device's driver,
// attributes and capacities, joined by &&, || and !. Everything else is Unknown, never guessed. It does not use the scheduler's own
// library, which would cost every role of the program 10 MiB of resident memory.
package selector

import (
	resourceapi "k8s.io/api/resource/v1"
)

// Verdict is the result of a selector for a device.
type Verdict int

// The verdicts.
const (
	// No: the device is not selected.
	No Verdict = iota
	// Yes: it is.
	Yes
	// Failed: the scheduler's library would return an error, and the claim is then allocated nowhere.
	Failed
	// Unknown: the selector has parts that this package does not evaluate.
	Unknown
)

// String is a word.
func (v Verdict) String() string { return [...]string{"no", "yes", "failed", "unknown"}[v] }

// Selector is a parsed selector.
type Selector struct {
	// Text is the expression.
	Text string
	root node
	bad  string
}

// Read parses an expression. One that cannot be parsed selects with Unknown.
func Read(text string) Selector {
	s := Selector{Text: text}
	tokens, bad := scan(text)
	if bad != "" {
		s.bad = bad
		return s
	}
	p := parser{tokens: tokens}
	root := p.either(0)
	if p.bad == "" && p.at < len(p.tokens) {
		p.bad = "unexpected " + p.tokens[p.at].text
	}
	s.root, s.bad = root, p.bad
	return s
}

// Judge says whether the selector selects a driver's device. why says what failed or is unknown.
func (s Selector) Judge(driver string, device *resourceapi.Device) (verdict Verdict, why string) {
	if s.bad != "" {
		return Unknown, s.bad
	}
	switch v := s.root.value(&subject{driver: driver, device: device}).(type) {
	case bool:
		if v {
			return Yes, ""
		}
		return No, ""
	case failure:
		return Failed, string(v)
	case unknown:
		return Unknown, string(v)
	default:
		return Failed, "the expression is no boolean"
	}
}

// subject is the device being evaluated.
type subject struct {
	driver string
	device *resourceapi.Device
	// attributes are the device's, once an expression has asked for them.
	attributes map[string]map[string]any
}

// failure is CEL's error, unknown what this package does not know.
type (
	failure string
	unknown string
)
