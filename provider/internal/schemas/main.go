// Command schemas prints the provider's schemas in the form of `terraform providers schema -json`. The documentation is generated from it:
// the provider's own answer has identities and list resources whatever Terraform is installed, or none.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"gpufabric.io/provider/internal/provider"
)

// address is the key under which tfplugindocs looks for a provider's schemas.
const address = "registry.terraform.io/hashicorp/gpufabric"

func main() {
	if err := write(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type object = map[string]any

func write(ctx context.Context) error {
	server := providerserver.NewProtocol6(provider.New("dev")())()
	all, err := server.GetProviderSchema(ctx, &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		return err
	}
	identities, err := server.GetResourceIdentitySchemas(ctx, &tfprotov6.GetResourceIdentitySchemasRequest{})
	if err != nil {
		return err
	}
	out := object{
		"provider": schema(all.Provider), "resource_schemas": schemas(all.ResourceSchemas), "data_source_schemas": schemas(all.DataSourceSchemas),
		"ephemeral_resource_schemas": schemas(
			all.EphemeralResourceSchemas,
		), "list_resource_schemas": schemas(all.ListResourceSchemas), "action_schemas": actions(all.ActionSchemas),
		"functions": functions(all.Functions), "resource_identity_schemas": identitySchemas(identities.IdentitySchemas),
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	return encoder.Encode(object{"format_version": "1.0", "provider_schemas": object{address: out}})
}

func schemas(all map[string]*tfprotov6.Schema) object {
	out := object{}
	for name, s := range all {
		out[name] = schema(s)
	}
	return out
}

func actions(all map[string]*tfprotov6.ActionSchema) object {
	out := object{}
	for name, s := range all {
		out[name] = schema(s.Schema)
	}
	return out
}

func schema(s *tfprotov6.Schema) object {
	return object{
		"version": s.Version,
		"block": object{
			"attributes":       attributes(s.Block.Attributes),
			"description":      s.Block.Description,
			"description_kind": kind(s.Block.DescriptionKind),
		},
	}
}

func attributes(list []*tfprotov6.SchemaAttribute) object {
	out := object{}
	for _, a := range list {
		attribute := object{
			"description":      a.Description,
			"description_kind": kind(a.DescriptionKind),
			"required":         a.Required,
			"optional":         a.Optional,
			"computed":         a.Computed,
			"sensitive":        a.Sensitive,
			"write_only":       a.WriteOnly,
		}
		if a.NestedType != nil {
			attribute["nested_type"] = object{"attributes": attributes(a.NestedType.Attributes), "nesting_mode": nesting(a.NestedType.Nesting)}
		} else {
			attribute["type"] = a.Type
		}
		out[a.Name] = attribute
	}
	return out
}

func nesting(mode tfprotov6.SchemaObjectNestingMode) string {
	switch mode {
	case tfprotov6.SchemaObjectNestingModeList:
		return "list"
	case tfprotov6.SchemaObjectNestingModeSet:
		return "set"
	case tfprotov6.SchemaObjectNestingModeMap:
		return "map"
	}
	return "single"
}

func kind(k tfprotov6.StringKind) string {
	if k == tfprotov6.StringKindMarkdown {
		return "markdown"
	}
	return "plain"
}

func functions(all map[string]*tfprotov6.Function) object {
	parameter := func(p *tfprotov6.FunctionParameter) object {
		return object{"name": p.Name, "description": p.Description, "type": p.Type}
	}
	out := object{}
	for name, f := range all {
		function := object{"description": f.Description, "summary": f.Summary, "return_type": f.Return.Type}
		var parameters []object
		for _, p := range f.Parameters {
			parameters = append(parameters, parameter(p))
		}
		function["parameters"] = parameters
		if f.VariadicParameter != nil {
			function["variadic_parameter"] = parameter(f.VariadicParameter)
		}
		out[name] = function
	}
	return out
}

func identitySchemas(all map[string]*tfprotov6.ResourceIdentitySchema) object {
	out := object{}
	for name, s := range all {
		attributes := object{}
		for _, a := range s.IdentityAttributes {
			attributes[a.Name] = object{
				"type":                a.Type,
				"description":         a.Description,
				"required_for_import": a.RequiredForImport,
				"optional_for_import": a.OptionalForImport,
			}
		}
		out[name] = object{"version": s.Version, "attributes": attributes}
	}
	return out
}
