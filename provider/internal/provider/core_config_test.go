package provider

import (
	"context"
	"fmt"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// configuration is what core reads of a configuration's text.
type configuration struct {
	provider tftypes.Value
	blocks   []block
	actions  []block
	outputs  map[string]cty.Value
}

// block is a resource or a data source.
type block struct {
	address, kind string
	data          bool
	config        tftypes.Value
}

// parse decodes a configuration by the provider's schemas, as Terraform does, with its words for what does not fit. Blocks that core does
// not play are mistakes.
func (c *core) parse(text string) (*configuration, error) {
	c.t.Helper()
	file, diags := hclsyntax.ParseConfig([]byte(text), "main.tf", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	cfg := &configuration{outputs: map[string]cty.Value{}}
	scope := &hcl.EvalContext{Functions: c.functions()}
	decode := func(b *hclsyntax.Block, schema *tfprotov6.Schema) tftypes.Value {
		spec := hcldec.ObjectSpec{}
		for _, a := range schema.Block.Attributes {
			spec[a.Name] = &hcldec.AttrSpec{Name: a.Name, Type: configType(a), Required: a.Required}
		}
		value, more := hcldec.Decode(b.Body, spec, scope)
		if diags = append(diags, more...); more.HasErrors() {
			return tftypes.Value{}
		}
		return toProtocol(c.t, value, schema.ValueType())
	}
	for _, b := range file.Body.(*hclsyntax.Body).Blocks {
		switch {
		case b.Type == "terraform":
		case b.Type == "provider":
			cfg.provider = decode(b, c.schemas.Provider)
		case b.Type == "resource" && c.schemas.ResourceSchemas[b.Labels[0]] != nil:
			cfg.blocks = append(cfg.blocks, block{b.Labels[0] + "." + b.Labels[1], b.Labels[0], false,
				decode(b, c.schemas.ResourceSchemas[b.Labels[0]])})
		case b.Type == "data" && c.schemas.DataSourceSchemas[b.Labels[0]] != nil:
			cfg.blocks = append(cfg.blocks, block{"data." + b.Labels[0] + "." + b.Labels[1], b.Labels[0], true,
				decode(b, c.schemas.DataSourceSchemas[b.Labels[0]])})
		case b.Type == "action" && c.schemas.ActionSchemas[b.Labels[0]] != nil && len(b.Body.Blocks) == 1:
			cfg.actions = append(cfg.actions, block{"action." + b.Labels[0] + "." + b.Labels[1], b.Labels[0], false,
				decode(b.Body.Blocks[0], c.schemas.ActionSchemas[b.Labels[0]].Schema)})
		case b.Type == "output":
			value, more := b.Body.Attributes["value"].Expr.Value(scope)
			diags, cfg.outputs[b.Labels[0]] = append(diags, more...), value
		default:
			return nil, fmt.Errorf("core does not play %s %v: run this under Terraform", b.Type, b.Labels)
		}
	}
	if diags.HasErrors() {
		return nil, diags
	}
	if cfg.provider.Type() == nil {
		cfg.provider = decode(&hclsyntax.Block{Body: &hclsyntax.Body{}}, c.schemas.Provider)
	}
	return cfg, nil
}

// functions are the provider's own, and jsonencode of Terraform's.
func (c *core) functions() map[string]function.Function {
	all := map[string]function.Function{"jsonencode": stdlib.JSONEncodeFunc}
	for name, f := range c.schemas.Functions {
		spec := &function.Spec{Type: function.StaticReturnType(ctyType(f.Return.Type))}
		parameter := func(p *tfprotov6.FunctionParameter) function.Parameter {
			return function.Parameter{Name: p.Name, Type: ctyType(p.Type), AllowNull: true, AllowUnknown: true}
		}
		for _, p := range f.Parameters {
			spec.Params = append(spec.Params, parameter(p))
		}
		if f.VariadicParameter != nil {
			rest := parameter(f.VariadicParameter)
			spec.VarParam = &rest
		}
		spec.Impl = func(args []cty.Value, kind cty.Type) (cty.Value, error) {
			server, _ := newServer(c.t)
			req := &tfprotov6.CallFunctionRequest{Name: name}
			for _, arg := range args {
				packed, err := msgpack.Marshal(arg, arg.Type())
				must(c.t, err)
				req.Arguments = append(req.Arguments, &tfprotov6.DynamicValue{MsgPack: packed})
			}
			resp, err := server.CallFunction(context.Background(), req)
			must(c.t, err)
			if resp.Error != nil {
				return cty.NilVal, fmt.Errorf("%s", resp.Error.Text)
			}
			return msgpack.Unmarshal(resp.Result.MsgPack, kind)
		}
		all["provider::gpufabric::"+name] = function.New(spec)
	}
	return all
}

// configType is the type that a configuration may give an attribute: what is not required of an object may be left out.
func configType(a *tfprotov6.SchemaAttribute) cty.Type {
	if a.NestedType == nil {
		return ctyType(a.Type)
	}
	types, optional := map[string]cty.Type{}, []string{}
	for _, nested := range a.NestedType.Attributes {
		types[nested.Name] = configType(nested)
		if !nested.Required {
			optional = append(optional, nested.Name)
		}
	}
	object := cty.ObjectWithOptionalAttrs(types, optional)
	switch a.NestedType.Nesting {
	case tfprotov6.SchemaObjectNestingModeList:
		return cty.List(object)
	case tfprotov6.SchemaObjectNestingModeSet:
		return cty.Set(object)
	case tfprotov6.SchemaObjectNestingModeMap:
		return cty.Map(object)
	}
	return object
}

func ctyType(kind tftypes.Type) cty.Type {
	switch k := kind.(type) {
	case tftypes.List:
		return cty.List(ctyType(k.ElementType))
	case tftypes.Set:
		return cty.Set(ctyType(k.ElementType))
	case tftypes.Map:
		return cty.Map(ctyType(k.ElementType))
	case tftypes.Object:
		types := map[string]cty.Type{}
		for name, attribute := range k.AttributeTypes {
			types[name] = ctyType(attribute)
		}
		return cty.Object(types)
	}
	switch {
	case kind.Is(tftypes.String):
		return cty.String
	case kind.Is(tftypes.Bool):
		return cty.Bool
	case kind.Is(tftypes.Number):
		return cty.Number
	}
	return cty.DynamicPseudoType
}

// toProtocol turns a decoded value into one of the protocol.
func toProtocol(t testing.TB, value cty.Value, kind tftypes.Type) tftypes.Value {
	t.Helper()
	packed, err := msgpack.Marshal(value, value.Type())
	must(t, err)
	converted, err := (&tfprotov6.DynamicValue{MsgPack: packed}).Unmarshal(kind)
	must(t, err)
	return converted
}
