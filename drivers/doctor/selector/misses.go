package selector

import (
	"fmt"
	"strconv"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// part is an operand of an expression's outermost &&.
type part struct {
	compiled cel.CompilationResult
	// domain and name identify the attribute or capacity that it compares, wanted the constant; an empty name: it is of another form.
	domain, name, wanted string
}

// partsOf returns the parts of an expression that compiles; nil where one does not by itself.
func partsOf(text string, env *celgo.Env) []part {
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return nil
	}
	var parts []part
	for _, expression := range operands(parsed.NativeRep().Expr()) {
		own, err := celgo.ExprToString(expression, parsed.NativeRep().SourceInfo())
		if err != nil {
			return nil
		}
		p := part{compiled: compile(own)}
		if p.compiled.Error != nil {
			return nil
		}
		p.domain, p.name, p.wanted = compared(expression)
		parts = append(parts, p)
	}
	return parts
}

// operands are the operands of an expression's outermost &&.
func operands(e ast.Expr) []ast.Expr {
	if e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.LogicalAnd {
		var all []ast.Expr
		for _, operand := range e.AsCall().Args() {
			all = append(all, operands(operand)...)
		}
		return all
	}
	return []ast.Expr{e}
}

// compared returns the attribute or capacity and the constant of a comparison: a == 1, a.isGreaterThan(quantity("1")),
// a.compareTo(quantity("1")) >= 0.
func compared(e ast.Expr) (domain, name, wanted string) {
	if e.Kind() != ast.CallKind {
		return "", "", ""
	}
	call := e.AsCall()
	var left, right ast.Expr
	switch {
	case call.IsMemberFunction() && len(call.Args()) == 1:
		left, right = call.Target(), call.Args()[0]
	case len(call.Args()) == 2 && isComparison(call.FunctionName()):
		left, right = call.Args()[0], call.Args()[1]
		if left.Kind() == ast.CallKind && left.AsCall().FunctionName() == "compareTo" && len(left.AsCall().Args()) == 1 {
			left, right = left.AsCall().Target(), left.AsCall().Args()[0]
		}
	default:
		return "", "", ""
	}
	domain, name = field(left)
	if wanted = constant(right); wanted == "" {
		return "", "", ""
	}
	return domain, name, wanted
}

func isComparison(function string) bool {
	switch function {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return true
	}
	return false
}

// field reads device.attributes["domain"].name, and the like of a capacity.
func field(e ast.Expr) (domain, name string) {
	if e.Kind() != ast.SelectKind {
		return "", ""
	}
	of := e.AsSelect().Operand()
	if of.Kind() != ast.CallKind || of.AsCall().FunctionName() != operators.Index || of.AsCall().Args()[1].Kind() != ast.LiteralKind {
		return "", ""
	}
	return constant(of.AsCall().Args()[1]), e.AsSelect().FieldName()
}

// constant is a literal, or the text of a quantity or version; empty: neither.
func constant(e ast.Expr) string {
	switch e.Kind() {
	case ast.LiteralKind:
		switch e.AsLiteral().Type() {
		case types.StringType, types.IntType, types.BoolType:
			return fmt.Sprint(e.AsLiteral().Value())
		}
	case ast.CallKind:
		if call := e.AsCall(); !call.IsMemberFunction() && len(call.Args()) == 1 &&
			(call.FunctionName() == "quantity" || call.FunctionName() == "semver") {
			return constant(call.Args()[0])
		}
	}
	return ""
}

// Misses returns, for each part of an && that a device fails, the device's value and the wanted one: "memory is 81559Mi, asked for 80Gi".
// ok is false where a part fails that is no comparison of one value with a constant.
func (s Selector) Misses(driver string, device *resourceapi.Device) (misses []string, ok bool) {
	if len(s.parts) == 0 {
		return nil, false
	}
	ok = true
	for _, p := range s.parts {
		if verdict, _ := judge(p.compiled, driver, device); verdict == Yes {
			continue
		}
		has := value(device, driver, p.domain, p.name)
		if has == "" {
			ok = false
			continue
		}
		misses = append(misses, fmt.Sprintf("%s is %s, asked for %s", p.name, has, p.wanted))
	}
	return misses, ok
}

// value is a device's attribute or capacity for a person; empty: it has none of the name.
func value(device *resourceapi.Device, driver, domain, name string) string {
	names := []resourceapi.QualifiedName{resourceapi.QualifiedName(domain + "/" + name)}
	if domain == driver {
		names = append(names, resourceapi.QualifiedName(name))
	}
	for _, n := range names {
		if capacity, is := device.Capacity[n]; is {
			return capacity.Value.String()
		}
		switch a := device.Attributes[n]; {
		case a.StringValue != nil:
			return *a.StringValue
		case a.IntValue != nil:
			return strconv.FormatInt(*a.IntValue, 10)
		case a.BoolValue != nil:
			return strconv.FormatBool(*a.BoolValue)
		case a.VersionValue != nil:
			return *a.VersionValue
		}
	}
	return ""
}
