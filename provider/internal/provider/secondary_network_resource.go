package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
)

type secondaryNetworkModel struct {
	namespacedMeta
	Type         types.String `tfsdk:"type"`
	Master       types.String `tfsdk:"master"`
	Mode         types.String `tfsdk:"mode"`
	MTU          types.Int64  `tfsdk:"mtu"`
	PCIBusID     types.String `tfsdk:"pci_bus_id"`
	ResourceName types.String `tfsdk:"resource_name"`
	IPAM         types.Object `tfsdk:"ipam"`

	Config types.String `tfsdk:"config"`

	anyForm bool // a configuration that the attributes cannot hold is no error
}

type ipamModel struct {
	Range   types.String `tfsdk:"range"`
	Start   types.String `tfsdk:"range_start"`
	End     types.String `tfsdk:"range_end"`
	Gateway types.String `tfsdk:"gateway"`
	Exclude types.Set    `tfsdk:"exclude"`
}

var ipamType = map[string]attr.Type{
	"range":       types.StringType,
	"range_start": types.StringType,
	"range_end":   types.StringType,
	"gateway":     types.StringType,
	"exclude":     types.SetType{ElemType: types.StringType},
}

// cniConfig is the network's CNI configuration, as Multus hands it to the plugins.
type cniConfig struct {
	CNIVersion string   `json:"cniVersion"`
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	Master     string   `json:"master,omitempty"`
	Mode       string   `json:"mode,omitempty"`
	MTU        int64    `json:"mtu,omitempty"`
	PCIBusID   string   `json:"pciBusID,omitempty"`
	IPAM       *cniIPAM `json:"ipam,omitempty"`
}

type cniIPAM struct {
	Type    string   `json:"type"`
	Range   string   `json:"range"`
	Start   string   `json:"range_start,omitempty"`
	End     string   `json:"range_end,omitempty"`
	Gateway string   `json:"gateway,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

const (
	cniVersion = "0.3.1" // the newest that all of macvlan, ipoib, host-device and whereabouts speak
	// resourceAnnotation ties a network to the devices it needs; Multus passes the device that a pod was given.
	resourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"
)

var networkKind = object.Kind{
	Group:      "k8s.cni.cncf.io",
	Version:    "v1",
	Name:       "NetworkAttachmentDefinition",
	Plural:     "network-attachment-definitions",
	Namespaced: true,
}

func newSecondaryNetworkResource() resource.Resource {
	return newObjectResource(secondaryNetworkDefinition())
}

func secondaryNetworkDefinition() definition[*secondaryNetworkModel] {
	return definition[*secondaryNetworkModel]{
		name:     "secondary_network",
		kind:     networkKind,
		schema:   secondaryNetworkSchema,
		empty:    func() *secondaryNetworkModel { return &secondaryNetworkModel{} },
		validate: validateSecondaryNetwork,
		await: func(_ context.Context, _ *cluster.Client, _ *secondaryNetworkModel, obj *unstructured.Unstructured) (*unstructured.Unstructured,
			string, error) {
			return obj, "", nil // there is no status: Multus reads the object when a pod starts
		},
	}
}

func secondaryNetworkSchema(ctx context.Context) schema.Schema {
	attributes := metaAttributes(ctx, networkKind)
	text := func(what string, validators ...validator.String) schema.Attribute {
		return schema.StringAttribute{Optional: true, Validators: validators, MarkdownDescription: what}
	}
	attributes["type"] = schema.StringAttribute{
		Required:   true,
		Validators: []validator.String{stringvalidator.OneOf("macvlan", "ipoib", "host-device")},
		MarkdownDescription: "`macvlan` for RoCE and Ethernet, `ipoib` for InfiniBand, or `host-device`, which moves the NIC itself into the " +
			"pod.",
	}
	attributes["master"] = text(
		"Interface of the node on which the network is built. Required with `macvlan` and `ipoib`.",
		stringvalidator.RegexMatches(regexp.MustCompile(`^[^/:\s]{1,15}$`), "must be the name of a network interface"),
	)
	attributes["mode"] = text(
		"With `macvlan`: `bridge` (the CNI plugin's default), `vepa`, `private` or `passthru`.",
		stringvalidator.OneOf("bridge", "vepa", "private", "passthru"),
	)
	attributes["mtu"] = schema.Int64Attribute{
		Optional:            true,
		Validators:          []validator.Int64{int64validator.Between(68, 65520)},
		MarkdownDescription: "MTU with `macvlan`; without it the master's.",
	}
	attributes["pci_bus_id"] = text(
		"PCI address of the NIC with `host-device`, unless `resource_name` selects the NIC of a pod.",
		stringvalidator.RegexMatches(
			regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$`),
			"must be a PCI address, such as 0000:3b:00.0",
		),
	)
	attributes["resource_name"] = text(
		"Resource whose allocated device the network uses, for example `gpufabric_rdma_pool.this.resource`.",
		stringvalidator.RegexMatches(regexp.MustCompile(`^[^/]+/[^/]+$`), "must be prefix/name, for example rdma/hca_shared_devices_a"),
	)
	attributes["ipam"] = schema.SingleNestedAttribute{
		Optional:            true,
		MarkdownDescription: "Addresses from whereabouts, unique over the cluster; without it pods get none.",
		Attributes: map[string]schema.Attribute{
			"range":       schema.StringAttribute{Required: true, MarkdownDescription: "Network in CIDR form, for example `10.56.0.0/16`."},
			"range_start": text("First address to hand out.", notEmpty()...),
			"range_end":   text("Last address to hand out.", notEmpty()...),
			"gateway":     text("Gateway. It is left out of the addresses that pods get.", notEmpty()...),
			"exclude": schema.SetAttribute{
				ElementType:         types.StringType,
				Optional:            true,
				MarkdownDescription: "Networks in CIDR form that are left out.",
			},
		},
	}
	attributes["config"] = schema.StringAttribute{
		Computed: true,
		MarkdownDescription: "The whole CNI configuration in the cluster, as JSON with sorted keys. Where somebody changed any of it, the plan " +
			"shows it here, and the apply writes it anew.",
	}
	return schema.Schema{
		Attributes: attributes,
		MarkdownDescription: "A secondary network for pods with RDMA NICs: a `NetworkAttachmentDefinition` for Multus, with macvlan, ipoib or " +
			"host-device and whereabouts. " +
			"Pods join it with the annotation `k8s.v1.cni.cncf.io/networks: <name>`. Multus and the CNI plugins must be installed.",
	}
}

// validateSecondaryNetwork checks combinations of attributes, and the addresses.
func validateSecondaryNetwork(ctx context.Context, m *secondaryNetworkModel) (field.ErrorList, diag.Diagnostics) {
	var errs field.ErrorList
	only := func(name string, set bool, kind string) {
		if set && m.Type.ValueString() != kind {
			errs = append(errs, field.Forbidden(field.NewPath(name), "only allowed with type "+kind))
		}
	}
	device := m.Type.ValueString() == "host-device"
	switch {
	case device && !m.Master.IsNull():
		errs = append(errs, field.Forbidden(field.NewPath("master"), "not allowed with type host-device: set pci_bus_id or resource_name"))
	case !device && m.Master.IsNull():
		errs = append(errs, field.Required(field.NewPath("master"), "the interface of the node on which the network is built"))
	case device && m.PCIBusID.IsNull() && m.ResourceName.IsNull():
		errs = append(errs, field.Required(field.NewPath("pci_bus_id"), "pci_bus_id or resource_name selects the NIC"))
	}
	only("mode", !m.Mode.IsNull(), "macvlan")
	only("mtu", !m.MTU.IsNull(), "macvlan")
	only("pci_bus_id", !m.PCIBusID.IsNull(), "host-device")
	if _, both := m.Annotations.Elements()[resourceAnnotation]; both {
		errs = append(
			errs,
			field.Forbidden(field.NewPath("annotations").Key(resourceAnnotation), "set resource_name, which writes this annotation"),
		)
	}
	config, diags := m.config(ctx)
	if config.IPAM != nil {
		errs = append(errs, config.IPAM.validate(field.NewPath("ipam"))...)
	}
	return errs, diags
}

func (c *cniIPAM) validate(at *field.Path) field.ErrorList {
	network, err := netip.ParsePrefix(c.Range)
	if err != nil {
		return field.ErrorList{field.Invalid(at.Child("range"), c.Range, "must be a network in CIDR form, such as 10.56.0.0/16")}
	}
	var errs field.ErrorList
	for _, a := range []struct{ name, value string }{{"range_start", c.Start}, {"range_end", c.End}, {"gateway", c.Gateway}} {
		if a.value == "" {
			continue
		}
		if address, err := netip.ParseAddr(a.value); err != nil || !network.Contains(address) {
			errs = append(errs, field.Invalid(at.Child(a.name), a.value, "must be an address in "+network.String()))
		}
	}
	first, noFirst := netip.ParseAddr(c.Start)
	if last, err := netip.ParseAddr(c.End); err == nil && noFirst == nil && last.Less(first) {
		errs = append(errs, field.Invalid(at.Child("range_end"), c.End, "must not be before range_start, "+c.Start))
	}
	for i, text := range c.Exclude {
		if left, err := netip.ParsePrefix(text); err != nil || !network.Overlaps(left) {
			errs = append(errs, field.Invalid(at.Child("exclude").Index(i), text, "must be a network in CIDR form inside "+network.String()))
		}
	}
	return errs
}

// hostNetwork is the network of one address, in CIDR form.
func hostNetwork(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// leaveOutGateway excludes the gateway. whereabouts hands out every address of its range that is not excluded: its allocation does not
// look at the gateway (pkg/allocate: IterateForAssignment).
func (c *cniIPAM) leaveOutGateway() {
	gateway, err := netip.ParseAddr(c.Gateway)
	if err != nil {
		return
	}
	for _, text := range c.Exclude {
		if left, err := netip.ParsePrefix(text); err == nil && left.Contains(gateway) {
			return
		}
	}
	c.Exclude = append(slices.Clone(c.Exclude), hostNetwork(gateway))
}

// configuredExclude returns the excluded networks without the one that leaveOutGateway added.
func (c *cniIPAM) configuredExclude(configured []string) []string {
	gateway, err := netip.ParseAddr(c.Gateway)
	last := len(c.Exclude) - 1
	if err != nil || last < 0 || c.Exclude[last] != hostNetwork(gateway) || slices.Contains(configured, c.Exclude[last]) {
		return c.Exclude
	}
	return c.Exclude[:last]
}

func (m *secondaryNetworkModel) config(ctx context.Context) (*cniConfig, diag.Diagnostics) {
	var diags diag.Diagnostics
	c := &cniConfig{
		CNIVersion: cniVersion,
		Name:       m.Name.ValueString(),
		Type:       m.Type.ValueString(),
		Master:     m.Master.ValueString(),
		Mode:       m.Mode.ValueString(),
		MTU:        m.MTU.ValueInt64(),
		PCIBusID:   m.PCIBusID.ValueString(),
	}
	if !m.IPAM.IsNull() {
		var ipam ipamModel
		diags.Append(m.IPAM.As(ctx, &ipam, objectAsOptions)...)
		c.IPAM = &cniIPAM{
			Type:    "whereabouts",
			Range:   ipam.Range.ValueString(),
			Start:   ipam.Start.ValueString(),
			End:     ipam.End.ValueString(),
			Gateway: ipam.Gateway.ValueString(),
			Exclude: stringsOf(ctx, ipam.Exclude, &diags),
		}
	}
	return c, diags
}

func (m *secondaryNetworkModel) spec(ctx context.Context) (map[string]any, diag.Diagnostics) {
	text, diags := m.text(ctx)
	return map[string]any{"config": text}, diags
}

// text returns the CNI configuration as it is written to the cluster: spec applies it, and predict plans it.
func (m *secondaryNetworkModel) text(ctx context.Context) (string, diag.Diagnostics) {
	config, diags := m.config(ctx)
	if config.IPAM != nil {
		config.IPAM.leaveOutGateway()
	}
	text, err := json.Marshal(config)
	if err != nil {
		diags.AddError("Cannot write the network", err.Error())
	}
	return string(text), diags
}

// predict works out the whole configuration.
func (m *secondaryNetworkModel) predict() {
	m.namespacedMeta.predict()
	m.Config = types.StringUnknown()
	for _, v := range []attr.Value{m.Name, m.Type, m.Master, m.Mode, m.MTU, m.PCIBusID, m.IPAM} {
		if hasUnknown(v) {
			return
		}
	}
	if text, diags := m.text(context.Background()); !diags.HasError() { // reads the model alone
		m.Config = types.StringValue(canonicalJSON(text))
	}
}

// canonicalJSON sorts the keys of a JSON text, so that texts of one meaning are equal. It returns other texts as they are.
func canonicalJSON(text string) string {
	var value any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if !json.Valid([]byte(text)) || decoder.Decode(&value) != nil {
		return text
	}
	sorted, err := json.Marshal(value)
	if err != nil {
		return text
	}
	return string(sorted)
}

// fill adds the annotation of the resource to those configured.
func (m *secondaryNetworkModel) fill(ctx context.Context, obj *unstructured.Unstructured) diag.Diagnostics {
	diags := m.namespacedMeta.fill(ctx, obj)
	if name := m.ResourceName.ValueString(); name != "" {
		annotations := obj.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[resourceAnnotation] = name
		obj.SetAnnotations(annotations)
	}
	return diags
}

// observe copies the whole text, and the attributes that it can be read into. Text that is no such configuration leaves the
// attributes as the state has them: it differs from the planned text, and so is written anew. In an import, which has no
// attributes to go by, it is an error.
func (m *secondaryNetworkModel) observe(ctx context.Context, obj *unstructured.Unstructured) diag.Diagnostics {
	var diags diag.Diagnostics
	text, _, _ := unstructured.NestedString(obj.Object, "spec", "config")
	m.Config = types.StringValue(canonicalJSON(text))
	m.ResourceName = textOrNull(obj.GetAnnotations()[resourceAnnotation])
	var c cniConfig
	var chain struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = json.Unmarshal([]byte(text), &chain)
	}
	if text == "" {
		err = errors.New("it is empty, so the configuration is a file of each node")
	}
	if err == nil && len(chain.Plugins) > 0 {
		err = errors.New("it is a chain of plugins")
	}
	if err == nil && c.IPAM != nil && c.IPAM.Type != "whereabouts" {
		err = fmt.Errorf("its ipam.type is %q", c.IPAM.Type)
	}
	if err != nil {
		if m.Type.IsNull() && !m.anyForm {
			diags.AddError("Network of another form", fmt.Sprintf("The spec.config of NetworkAttachmentDefinition %s/%s cannot be imported: %v. "+
				"A gpufabric_secondary_network is a single plugin (macvlan, ipoib or host-device) with addresses from whereabouts or without. "+
				"Keep this one with the tool that made it.", obj.GetNamespace(), obj.GetName(), err))
		}
		return diags
	}
	m.Type, m.Master, m.Mode, m.PCIBusID = types.StringValue(c.Type), textOrNull(c.Master), textOrNull(c.Mode), textOrNull(c.PCIBusID)
	m.MTU = types.Int64Null()
	if c.MTU != 0 {
		m.MTU = types.Int64Value(c.MTU)
	}
	m.observeIPAM(ctx, c.IPAM, &diags)
	return diags
}

func (m *secondaryNetworkModel) observeIPAM(ctx context.Context, ipam *cniIPAM, diags *diag.Diagnostics) {
	if ipam == nil {
		m.IPAM = types.ObjectNull(ipamType)
		return
	}
	var configured ipamModel
	if !m.IPAM.IsNull() && !m.IPAM.IsUnknown() {
		diags.Append(m.IPAM.As(ctx, &configured, objectAsOptions)...)
	}
	m.IPAM = types.ObjectValueMust(
		ipamType,
		map[string]attr.Value{
			"range":       types.StringValue(ipam.Range),
			"range_start": textOrNull(ipam.Start),
			"range_end":   textOrNull(ipam.End),
			"gateway":     textOrNull(ipam.Gateway),
			"exclude":     setOrNull(configured.Exclude, ipam.configuredExclude(stringsOf(ctx, configured.Exclude, diags))),
		},
	)
}

// observeMeta removes the resource's annotation, which is not the configuration's, from those that Terraform owns.
func (m *secondaryNetworkModel) observeMeta(obj *unstructured.Unstructured) {
	configured := m.Annotations
	m.namespacedMeta.observeMeta(obj)
	rest := map[string]attr.Value{}
	for key, value := range m.Annotations.Elements() {
		if key != resourceAnnotation {
			rest[key] = value
		}
	}
	if len(rest) == 0 && (configured.IsNull() || len(configured.Elements()) > 0) {
		m.Annotations = types.MapNull(types.StringType)
		return
	}
	m.Annotations = types.MapValueMust(types.StringType, rest)
}

func (m *secondaryNetworkModel) settled() bool { return true }

// readAnyForm makes observe read objects that it cannot manage, such as a chain of plugins, into config only.
func (m *secondaryNetworkModel) readAnyForm() { m.anyForm = true }

func textOrNull(s string) types.String {
	if s == "" {
		return types.StringNull()
	}
	return types.StringValue(s)
}
