package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

type driverStackModel struct {
	ID              types.String   `tfsdk:"id"`
	Name            types.String   `tfsdk:"name"`
	Namespace       types.String   `tfsdk:"namespace"`
	CreateNamespace types.Bool     `tfsdk:"create_namespace"`
	Chart           types.String   `tfsdk:"chart"`
	Values          types.List     `tfsdk:"values"`
	SecretValues    types.List     `tfsdk:"values_wo"`
	SecretVersion   types.Int64    `tfsdk:"values_wo_version"`
	Components      types.Object   `tfsdk:"components"`
	Hardware        types.Object   `tfsdk:"hardware"`
	RemoveCRDs      types.Bool     `tfsdk:"remove_crds"`
	WaitFor         types.String   `tfsdk:"wait_for"`
	Preflight       types.String   `tfsdk:"preflight"`
	DriftIgnore     types.Set      `tfsdk:"drift_ignore"`
	Timeouts        timeouts.Value `tfsdk:"timeouts"`

	ChartVersion    types.String `tfsdk:"chart_version"`
	AppVersion      types.String `tfsdk:"app_version"`
	ChartDigest     types.String `tfsdk:"chart_digest"`
	EffectiveValues types.Map    `tfsdk:"effective_values"`
	Revision        types.Int64  `tfsdk:"revision"`
	Status          types.String `tfsdk:"status"`
	Ready           types.Bool   `tfsdk:"ready"`
	Waiting         types.List   `tfsdk:"waiting_for"`
	Drift           types.List   `tfsdk:"drift"`
}

type componentsModel struct {
	ComputeDomains types.Bool `tfsdk:"compute_domains"`
	GPUs           types.Bool `tfsdk:"gpus"`
	RDMA           types.Bool `tfsdk:"rdma"`
	VGPU           types.Bool `tfsdk:"vgpu"`
}

type hardwareModel struct {
	DriverRoot  types.String `tfsdk:"driver_root"`
	SysfsRoot   types.String `tfsdk:"sysfs_root"`
	DevRoot     types.String `tfsdk:"dev_root"`
	ProcDevices types.String `tfsdk:"proc_devices"`
	HostMounts  types.Set    `tfsdk:"host_mounts"`
	Privileged  types.Bool   `tfsdk:"privileged"`
}

// Values of wait_for.
const (
	waitRollout = "rollout"
	waitNone    = "none"
)

func driverStackSchema(ctx context.Context) schema.Schema {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	component := func(what string) schema.BoolAttribute {
		return schema.BoolAttribute{Optional: true, MarkdownDescription: "Whether " + what + ". Unset: the default of the chart's values."}
	}
	location := func(what string) schema.StringAttribute {
		return schema.StringAttribute{Optional: true, Validators: absolutePath(), MarkdownDescription: what}
	}
	return schema.Schema{
		MarkdownDescription: "The gpufabric drivers in a cluster: a Helm release of the chart `gpufabric`, with its CRDs, installed, upgraded " +
			"in place, watched until it runs, and removed without remains.\n\n" +
			"An install that fails is taken back and leaves nothing. One that is only not ready in time stays, ends in a warning, and is waited " +
			"for again by the next apply; " +
			"to make such a run fail, and keep what depends on the drivers from being created, add a `postcondition` on `ready`. Neither taints " +
			"the resource.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{
				Computed:            true,
				PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
				MarkdownDescription: "`namespace/name`, also the import id.",
			},
			"name": schema.StringAttribute{
				Optional:            true,
				Computed:            true,
				Default:             stringdefault.StaticString(stackName),
				PlanModifiers:       replace,
				Validators:          helmReleaseName(),
				MarkdownDescription: "Name of the Helm release. Default `gpufabric`.",
			},
			"namespace": schema.StringAttribute{
				Optional:            true,
				Computed:            true,
				Default:             stringdefault.StaticString(stackNamespace),
				PlanModifiers:       replace,
				Validators:          kubernetesLabel(),
				MarkdownDescription: "Namespace of the release. Default `gpufabric-system`.",
			},
			"create_namespace": schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(true),
				MarkdownDescription: "Create the namespace if it does not exist. A namespace created so is deleted with the resource, unless others " +
					"have pods or volumes in it. Default `true`."},
			"chart": schema.StringAttribute{Required: true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
				MarkdownDescription: "The chart: a directory, a `.tgz` archive made by `helm package`, `oci://REGISTRY/PATH:VERSION`, or " +
					"`https://HOST/PATH.tgz`. Pin the content of an address by its digest: `oci://REGISTRY/PATH:VERSION@sha256:HEX`, " +
					"`https://HOST/PATH.tgz#sha256=HEX`. A registry is asked with the login of `helm registry login` or `docker login`.\n\n" +
					"It is read at plan time: a change of its content is planned as an upgrade. A saved plan needs the same content when it is " +
					"applied: use an archive or a digest rather than a directory there."},
			"values": schema.ListAttribute{
				ElementType: types.StringType,
				Optional:    true,
				Validators:  []validator.List{listvalidator.ValueStringsAre(valuesDocument{})},
				MarkdownDescription: "Chart values as YAML documents, later ones over earlier ones, for example `[file(\"values.yaml\"), " +
					"yamlencode({...})]`. They are checked against the chart's schema at plan time. " +
					"They are stored in the state: put secrets into `values_wo`.",
			},
			"values_wo": schema.ListAttribute{
				ElementType: types.StringType,
				Optional:    true,
				WriteOnly:   true,
				Validators: []validator.List{
					listvalidator.ValueStringsAre(valuesDocument{}),
					listvalidator.AlsoRequires(path.MatchRoot("values_wo_version")),
				},
				MarkdownDescription: "Further chart values as YAML documents, over `values`, that go into no plan and no state, for example from an " +
					"ephemeral resource. A value may stand here or in `values`, not in both. " +
					"Terraform cannot see that they changed: change `values_wo_version` with them. In errors, warnings and logs a value of four " +
					"characters or more is replaced by (secret). Helm keeps them in the release's Secret. Needs Terraform 1.11.",
			},
			"values_wo_version": schema.Int64Attribute{
				Optional:            true,
				Validators:          []validator.Int64{int64validator.AlsoRequires(path.MatchRoot("values_wo"))},
				MarkdownDescription: "Any number. A changed number applies `values_wo` again.",
			},
			"components": schema.SingleNestedAttribute{Optional: true, MarkdownDescription: "Parts of the stack to switch on or off, over `values`.",
				Attributes: map[string]schema.Attribute{
					"compute_domains": component("compute domains are served"),
					"gpus":            component("GPUs are served (DRA driver gpu.nvidia.com)"),
					"rdma":            component("RDMA pools are served"),
					"vgpu":            component("vGPU slices are served to Volcano"),
				}},
			"hardware": schema.SingleNestedAttribute{
				Optional: true,
				MarkdownDescription: "Where nodes keep their hardware, over `values`. The defaults of the chart fit NVIDIA's driver installed on " +
					"the host.",
				Attributes: map[string]schema.Attribute{
					"driver_root":  location("Root of the NVIDIA driver's files."),
					"sysfs_root":   location("Where sysfs is mounted."),
					"dev_root":     location("Where device nodes are."),
					"proc_devices": location("The file that lists device majors."),
					"host_mounts": schema.SetAttribute{
						ElementType:         types.StringType,
						Optional:            true,
						Validators:          []validator.Set{setvalidator.ValueStringsAre(absolutePath()...)},
						MarkdownDescription: "Further directories of the node, mounted at the same path in the node pods.",
					},
					"privileged": schema.BoolAttribute{
						Optional:            true,
						MarkdownDescription: "Whether node pods are privileged, as real device nodes need.",
					},
				},
			},
			"remove_crds": schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(true),
				MarkdownDescription: "Remove the chart's CRDs when the stack is destroyed. As long as objects of these kinds exist, or pods use the " +
					"drivers' devices, destroy removes nothing and names them. Default `true`."},
			"wait_for": schema.StringAttribute{
				Optional:            true,
				Computed:            true,
				Default:             stringdefault.StaticString(waitRollout),
				Validators:          []validator.String{stringvalidator.OneOf(waitRollout, waitNone)},
				MarkdownDescription: "`rollout`, the default, waits until every Deployment and DaemonSet of the release runs; `none` does not wait.",
			},
			"preflight": schema.StringAttribute{
				Optional:   true,
				Validators: []validator.String{stringvalidator.OneOf(preflightFail, preflightWarn, preflightOff)},
				MarkdownDescription: "What `gpufabric doctor preflight` is for, which says what would not work on this cluster with these values: " +
					"Kubernetes too old, other drivers, PodSecurity, quota, nodes that no plugin reaches, and what the Jobs of " +
					"`gpufabric doctor preflight --print-jobs` saw of the nodes' drivers. `warn`, the default, says so when an install or an " +
					"upgrade is planned and the cluster answers; `fail` refuses the plan, and the apply before it changes anything; `off` does " +
					"not look. It reads nodes, DaemonSets, namespaces, ResourceQuotas and the Jobs' pods with the provider's rights. What these do " +
					"not let it see fails nothing.",
			},
			"drift_ignore": schema.SetAttribute{
				ElementType: types.StringType,
				Optional:    true,
				Validators:  []validator.Set{setvalidator.ValueStringsAre(ignorePattern{})},
				MarkdownDescription: "Differences from the chart that are accepted, because somebody makes them for good: a sidecar or an " +
					"environment variable that an injector adds, a field that an operator sets. Each is `KIND NAMESPACE/NAME: FIELD` as `drift` " +
					"shows it, with " +
					"`*` " +
					"for any text, for example `DaemonSet gpufabric-system/*: spec.template.spec.containers[istio-proxy]`. It covers the fields below " +
					"the field too. An accepted difference is neither shown nor mended.",
			},
			"timeouts": timeoutsAttribute(ctx),

			"chart_version": schema.StringAttribute{Computed: true, MarkdownDescription: "Version of the chart."},
			"app_version":   schema.StringAttribute{Computed: true, MarkdownDescription: "Version of the drivers in it."},
			"chart_digest":  schema.StringAttribute{Computed: true, MarkdownDescription: "SHA-256 over the chart's content."},
			"effective_values": schema.MapAttribute{ElementType: types.StringType, Computed: true,
				MarkdownDescription: "The names of the values given to the chart (`controller.replicas`), each with a fingerprint of its value, so " +
					"that a plan shows which ones change, also by somebody else's `helm upgrade`. It shows no value, which may be sensitive."},
			"revision": schema.Int64Attribute{Computed: true, MarkdownDescription: "Helm's revision of the release."},
			"status":   schema.StringAttribute{Computed: true, MarkdownDescription: "Helm's status of the release; `deployed` when all is well."},
			"ready": schema.BoolAttribute{
				Computed:            true,
				MarkdownDescription: "Whether every Deployment and DaemonSet of the release is rolled out.",
			},
			"waiting_for": schema.ListAttribute{
				ElementType:         types.StringType,
				Computed:            true,
				MarkdownDescription: "What is not rolled out, one sentence each; empty when `ready`.",
			},
			"drift": schema.ListAttribute{ElementType: types.StringType, Computed: true,
				MarkdownDescription: "How objects of the release differ from the chart, one sentence each, with the field manager that made the " +
					"difference: deleted objects, and fields that were changed, removed or added. The next apply mends it, without a new revision " +
					"where only objects differ. What is there again right after that is an error: accept it with `drift_ignore`, or stop who does " +
					"it."},
		},
	}
}
