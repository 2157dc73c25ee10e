package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"

	"gpufabric.io/provider/internal/fabric"
)

// pureFunction is a provider function: its definition, and its computation.
type pureFunction struct {
	name       string
	definition function.Definition
	run        func(ctx context.Context, args function.ArgumentsData) (any, *function.FuncError)
}

var _ function.Function = (*pureFunction)(nil)

func (f *pureFunction) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = f.name
}

func (f *pureFunction) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = f.definition
}

func (f *pureFunction) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	result, err := f.run(ctx, req.Arguments)
	if err == nil {
		err = resp.Result.Set(ctx, result)
	}
	resp.Error = function.ConcatFuncErrors(resp.Error, err)
}

func (p *fabricProvider) Functions(context.Context) []func() function.Function {
	return []func() function.Function{newParseCliqueID, newParseMIGProfile, newMIGLayouts, newVGPUFit, newRDMASelector, newMIGParted}
}

func text(name, what string) function.Parameter {
	return function.StringParameter{Name: name, MarkdownDescription: what}
}

func number(name, what string) function.Parameter {
	return function.Int64Parameter{Name: name, MarkdownDescription: what}
}

type cliqueResult struct {
	ClusterUUID string `tfsdk:"cluster_uuid"`
	CliqueID    int64  `tfsdk:"clique_id"`
}

func newParseCliqueID() function.Function {
	return &pureFunction{
		name: "parse_clique_id",
		definition: function.Definition{
			Summary: "Parses the name of an NVLink clique",
			MarkdownDescription: "Parses `<ClusterUUID>.<CliqueID>`, the form of the node label `nvidia.com/gpu.clique` and of a compute " +
				"domain's nodes.\n\nThe result has `cluster_uuid` (String) and `clique_id` (Number).",
			Parameters: []function.Parameter{text("id", "The clique, for example `69a19a31-f41c-45a5-8245-579b6bce5bdd.32766`.")},
			Return: function.ObjectReturn{
				AttributeTypes: map[string]attr.Type{"cluster_uuid": types.StringType, "clique_id": types.Int64Type},
			},
		},
		run: func(ctx context.Context, args function.ArgumentsData) (any, *function.FuncError) {
			var id string
			if err := args.Get(ctx, &id); err != nil {
				return nil, err
			}
			clique, err := fabric.ParseClique(id)
			if err != nil {
				return nil, function.NewArgumentFuncError(0, err.Error())
			}
			return cliqueResult{clique.ClusterUUID, int64(clique.ID)}, nil
		},
	}
}

type profileResult struct {
	GPUSlices     int64    `tfsdk:"gpu_slices"`
	ComputeSlices int64    `tfsdk:"compute_slices"`
	MemoryGB      int64    `tfsdk:"memory_gb"`
	Attributes    []string `tfsdk:"attributes"`
}

func newParseMIGProfile() function.Function {
	return &pureFunction{
		name: "parse_mig_profile",
		definition: function.Definition{
			Summary: "Parses the name of a MIG profile",
			MarkdownDescription: "Takes a MIG profile's name, for example `1g.10gb`, `1g.10gb+me` or `1c.3g.40gb`, apart: slices of the GPU " +
				"instance and of the compute instance, " +
				"the memory as named in GB, and what stands after the plus.\n\nThe result has `gpu_slices` (Number), `compute_slices` (Number; " +
				"that of the GPU instance where the name has none), `memory_gb` (Number) and `attributes` (List of String, for example `[\"me\"]`; " +
				"empty where there is no plus).",
			Parameters: []function.Parameter{text("profile", "The profile's name.")},
			Return: function.ObjectReturn{
				AttributeTypes: map[string]attr.Type{"gpu_slices": types.Int64Type, "compute_slices": types.Int64Type, "memory_gb": types.Int64Type,
					"attributes": types.ListType{ElemType: types.StringType}},
			},
		},
		run: func(ctx context.Context, args function.ArgumentsData) (any, *function.FuncError) {
			var name string
			if err := args.Get(ctx, &name); err != nil {
				return nil, err
			}
			profile, err := fabric.ParseMIGProfile(name)
			if err != nil {
				return nil, function.NewArgumentFuncError(0, err.Error())
			}
			attributes := profile.Attributes
			if attributes == nil {
				attributes = []string{}
			}
			return profileResult{int64(profile.GPUSlices), int64(profile.ComputeSlices), int64(profile.MemoryGB), attributes}, nil
		},
	}
}

func newMIGLayouts() function.Function {
	return &pureFunction{
		name: "mig_layouts",
		definition: function.Definition{
			Summary: "Lists the ways to divide one GPU by MIG",
			MarkdownDescription: "Lists the MIG layouts of one GPU to which nothing can be added, each as its profiles from large to small. With " +
				"further arguments, only layouts with all of these profiles. " +
				"Computed from the placements of seven-slice parts: a driver may name a profile otherwise, and what a node really has is in its " +
				"ResourceSlices (data source `gpufabric_devices`).",
			Parameters: []function.Parameter{
				text("model", "One of `A100-40GB`, `A100-80GB`, `H100-80GB`, `H200-141GB`, `B200-180GB`, `GB200-186GB`."),
			},
			VariadicParameter: function.StringParameter{
				Name:                "containing",
				MarkdownDescription: "Profiles that a layout must have; repeat one to have it twice.",
			},
			Return: function.ListReturn{ElementType: types.ListType{ElemType: types.StringType}},
		},
		run: func(ctx context.Context, args function.ArgumentsData) (any, *function.FuncError) {
			var model string
			var containing []string
			if err := args.Get(ctx, &model, &containing); err != nil {
				return nil, err
			}
			layouts, err := fabric.MIGLayouts(model, containing...)
			if err != nil {
				return nil, function.NewFuncError(err.Error())
			}
			if layouts == nil {
				layouts = [][]string{}
			}
			return layouts, nil
		},
	}
}

type fitResult struct {
	Slices        int64  `tfsdk:"slices"`
	LimitedBy     string `tfsdk:"limited_by"`
	MemoryLeftMiB int64  `tfsdk:"memory_left_mib"`
	CoresLeft     int64  `tfsdk:"cores_left"`
}

func newVGPUFit() function.Function {
	return &pureFunction{
		name: "vgpu_fit",
		definition: function.Definition{
			Summary: "Computes how many vGPU slices one GPU holds",
			MarkdownDescription: "Computes how many equal slices one GPU holds, what limits their number (`memory`, `cores` or `split`), and " +
				"what is left over.\n\nThe result has `slices` (Number), `limited_by` (String: `memory`, `cores` or `split`), `memory_left_mib` " +
				"(Number, in MiB) and `cores_left` (Number, in percent of the GPU).",
			Parameters: []function.Parameter{
				number("gpu_memory_mib", "The GPU's memory in MiB."), number("memory_mib", "A slice's memory in MiB."),
				number(
					"cores",
					"A slice's cores in percent of the GPU, 0 to 100; 0 reserves none.",
				), number("split", "How many slices a GPU may have at most."),
			},
			Return: function.ObjectReturn{
				AttributeTypes: map[string]attr.Type{
					"slices":          types.Int64Type,
					"limited_by":      types.StringType,
					"memory_left_mib": types.Int64Type,
					"cores_left":      types.Int64Type,
				},
			},
		},
		run: func(ctx context.Context, args function.ArgumentsData) (any, *function.FuncError) {
			var gpu, memory, cores, split int64
			if err := args.Get(ctx, &gpu, &memory, &cores, &split); err != nil {
				return nil, err
			}
			fit, err := fabric.FitSlices(gpu, memory, cores, split)
			if err != nil {
				return nil, function.NewFuncError(err.Error())
			}
			return fitResult{fit.Slices, fit.LimitedBy, fit.MemoryLeftMiB, fit.CoresLeft}, nil
		},
	}
}

func newRDMASelector() function.Function {
	return &pureFunction{
		name: "rdma_selector",
		definition: function.Definition{
			Summary: "Reads an RDMA pool's selectors from a config.json",
			MarkdownDescription: "Reads the selectors of one resource from the config.json of the RDMA device plugin, in the form of " +
				"`gpufabric_rdma_pool`'s attribute `selectors`. " +
				"An entry that lists `devices` gives `if_names`. Every mistake in the entry is reported with its path.\n\nThe result has the " +
				"attributes of `selectors`, and null for each that the entry lacks.",
			Parameters: []function.Parameter{
				text("config_json", "The text of config.json, for example `file(\"config.json\")`."),
				text("resource_name", "The entry's `resourceName`."),
			},
			Return: function.ObjectReturn{AttributeTypes: rdmaSelectorsType()},
		},
		run: func(ctx context.Context, args function.ArgumentsData) (any, *function.FuncError) {
			var config, name string
			if err := args.Get(ctx, &config, &name); err != nil {
				return nil, err
			}
			entry, err := fabric.PoolOfConfig(config, name)
			if err != nil {
				return nil, function.NewFuncError(err.Error())
			}
			selectors := entry.Selectors
			if len(entry.Devices) > 0 {
				selectors = &v1alpha1.RDMASelectors{IfNames: entry.Devices}
			}
			var diags diag.Diagnostics
			value := rdmaSelectorsValue(ctx, types.ObjectNull(rdmaSelectorsType()), selectors, &diags)
			return value, function.FuncErrorFromDiags(ctx, diags)
		},
	}
}

func newMIGParted() function.Function {
	return &pureFunction{
		name: "mig_parted",
		definition: function.Definition{
			Summary: "Reads MIG layouts from a configuration file of mig-parted",
			MarkdownDescription: "Reads the layouts (`mig-configs`) of a configuration file of mig-parted in the form of " +
				"`gpufabric_mig_layout`'s attribute `layouts`. Unknown keys are errors.\n\nThe result is a map by the layouts' names. Each has " +
				"`gpus`, a list with an object an entry: `device_filter` (List of String), `devices` (List of Number; null: all GPUs) and " +
				"`mig_devices` (Map of Number by profile; null: MIG mode off).",
			Parameters: []function.Parameter{text("config_yaml", "The text of the file, for example `file(\"mig.yaml\")`.")},
			Return:     function.MapReturn{ElementType: layoutType},
		},
		run: func(ctx context.Context, args function.ArgumentsData) (any, *function.FuncError) {
			var config string
			if err := args.Get(ctx, &config); err != nil {
				return nil, err
			}
			parsed, err := fabric.ParseMIGParted(config)
			if err != nil {
				return nil, function.NewArgumentFuncError(0, err.Error())
			}
			var diags diag.Diagnostics
			value := layoutsValue(ctx, *parsed, &diags)
			return value, function.FuncErrorFromDiags(ctx, diags)
		},
	}
}
