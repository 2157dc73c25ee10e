package provider

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// planner plans one resource at the protocol, without Terraform and without a cluster.
type planner struct {
	server tfprotov6.ProviderServer
	name   string
	schema *tfprotov6.Schema
	// private is the resource's private data, as the last plan left it.
	private []byte
}

func (p *planner) object() tftypes.Object { return p.schema.ValueType().(tftypes.Object) }

// config returns a configuration with these attributes; the others are null.
func (p *planner) config(given map[string]tftypes.Value) map[string]tftypes.Value {
	config := map[string]tftypes.Value{}
	for name, kind := range p.object().AttributeTypes {
		config[name] = tftypes.NewValue(kind, nil)
	}
	for name, value := range given {
		config[name] = value
	}
	return config
}

func (p *planner) pack(t *testing.T, attributes map[string]tftypes.Value) *tfprotov6.DynamicValue {
	t.Helper()
	value := tftypes.NewValue(p.object(), nil)
	if attributes != nil {
		value = tftypes.NewValue(p.object(), attributes)
	}
	packed, err := tfprotov6.NewDynamicValue(p.object(), value)
	must(t, err)
	return &packed
}

// plan plans a configuration over a state (nil: none), as Terraform proposes it.
func (p *planner) plan(t *testing.T, prior, config map[string]tftypes.Value) map[string]tftypes.Value {
	t.Helper()
	proposed := map[string]tftypes.Value{}
	for _, a := range p.schema.Block.Attributes {
		proposed[a.Name] = config[a.Name]
		if config[a.Name].IsNull() && a.Computed && prior != nil {
			proposed[a.Name] = prior[a.Name]
		}
	}
	resp, err := p.server.PlanResourceChange(t.Context(), &tfprotov6.PlanResourceChangeRequest{TypeName: p.name,
		PriorState: p.pack(t, prior), ProposedNewState: p.pack(t, proposed), Config: p.pack(t, config), PriorPrivate: p.private})
	must(t, err)
	p.private = resp.PlannedPrivate
	for _, d := range resp.Diagnostics {
		t.Fatalf("%s: %s", d.Summary, d.Detail)
	}
	value, err := resp.PlannedState.Unmarshal(p.object())
	must(t, err)
	planned := map[string]tftypes.Value{}
	must(t, value.As(&planned))
	return planned
}

// sample returns a known value of a type.
func sample(kind tftypes.Type) tftypes.Value {
	switch {
	case kind.Is(tftypes.String):
		return tftypes.NewValue(kind, "x")
	case kind.Is(tftypes.Bool):
		return tftypes.NewValue(kind, true)
	case kind.Is(tftypes.Number):
		return tftypes.NewValue(kind, 1)
	case kind.Is(tftypes.List{}):
		return tftypes.NewValue(kind, []tftypes.Value{})
	}
	return tftypes.NewValue(kind, map[string]tftypes.Value{})
}

func stringValue(s string) tftypes.Value { return tftypes.NewValue(tftypes.String, s) }

// keeping is a resource whose attributes are changed one at a time.
type keeping struct {
	name string
	base map[string]string // its configuration, without name, as HCL
	// known is what follows from base alone, before the object exists.
	known map[string]string
	// spec has changes of the spec; status may change with them, and nothing does with those of beside.
	spec, beside map[string]string
	status       []string
	after        map[string]string // resource of a pool after the change named here
}

func keepings(t *testing.T) []keeping {
	otherChart := filepath.Join(t.TempDir(), "stack")
	must(t, os.CopyFS(otherChart, os.DirFS("testdata/stack")))
	sameChart := filepath.Join(t.TempDir(), "stack")
	must(t, os.CopyFS(sameChart, os.DirFS("testdata/stack")))
	must(t, os.WriteFile(filepath.Join(otherChart, "NOTES"), []byte("another"), 0o600))
	const selector = `{ match_labels = { a = "b" } }`
	status := []string{"accepted", "message", "nodes", "ready"}
	return []keeping{
		{"rdma_pool", map[string]string{"resource_name": `"a"`, "devices": `["ib0"]`}, map[string]string{"id": "x", "resource": "rdma/a"},
			map[string]string{"resource_name": `"b"`, "resource_prefix": `"net"`, "rdma_hca_max": "3", "device_nodes": `"All"`,
				"devices": `["ib1"]`, "selectors": `{ vendors = ["15b3"] }`, "mode": `"Exclusive"`, "exclude_topology": "true",
				"node_selector": selector}, nil,
			append([]string{"healthy_devices"}, status...), map[string]string{"resource_name": "rdma/b", "resource_prefix": "net/a"}},
		{"vgpu_profile", map[string]string{"mode": `"Software"`, "memory": `"1Gi"`},
			map[string]string{"id": "x", "device_class": "x", "extended_resource_name": "gpufabric.io/x"},
			map[string]string{"mode": `"MIG"`, "memory": `"2Gi"`, "cores": "5", "split": "2", "policy": `"Spread"`, "namespaces": `["a"]`,
				"product_names": `["NVIDIA L40S"]`, "node_selector": selector}, nil, append([]string{"fits"}, status...), nil},
		{"compute_domain", map[string]string{"channel": `{ resource_claim_template = "c" }`}, map[string]string{"id": "default/x"},
			map[string]string{"num_nodes": "3", "channel": `{ resource_claim_template = "d" }`}, nil, status, nil},
		{"mig_layout", map[string]string{"layout": `"off"`, "layouts": `{ off = { gpus = [{}] }, on = { gpus = [{}] } }`},
			map[string]string{"id": "x"},
			map[string]string{"layout": `"on"`, "layouts": `{ off = { gpus = [{}] } }`, "node_selector": selector}, nil, status, nil},
		{"secondary_network",
			map[string]string{"type": `"ipoib"`, "master": `"ib0"`, "ipam": `{ range = "10.0.0.0/24", gateway = "10.0.0.1" }`},
			map[string]string{"id": "default/x", "config": `{"cniVersion":"0.3.1","ipam":{"exclude":["10.0.0.1/32"],"gateway":"10.0.0.1",` +
				`"range":"10.0.0.0/24","type":"whereabouts"},"master":"ib0","name":"x","type":"ipoib"}`},
			map[string]string{"master": `"ib1"`, "type": `"macvlan"`, "mode": `"bridge"`, "mtu": "1500", "pci_bus_id": `"0000:3b:00.0"`,
				"resource_name": `"rdma/a"`, "ipam": `{ range = "10.0.1.0/24" }`}, nil, nil, nil},
		{"driver_stack", map[string]string{"chart": `"testdata/stack"`},
			map[string]string{"id": "gpufabric-system/x", "chart_version": "1.0.0", "status": "deployed"},
			map[string]string{"chart": fmt.Sprintf("%q", otherChart), "values": `["controller: {replicas: 2}"]`, "values_wo_version": "2",
				"components": "{ compute_domains = false }", "hardware": `{ driver_root = "/run/x" }`},
			map[string]string{"chart": fmt.Sprintf("%q", sameChart), "create_namespace": "false", "remove_crds": "false", "wait_for": `"none"`,
				"preflight": `"off"`, "drift_ignore": `["DaemonSet a/*: spec"]`, "values_wo": `["hardware: {driverRoot: /x}"]`},
			[]string{"ready", "revision", "waiting_for"}, nil},
	}
}

// TestPlanKeepsKnownValuesKnown changes each attribute of each resource that is ready, alone, and looks which computed ones become
// unknown: dependents of an unknown one may be replaced.
func TestPlanKeepsKnownValuesKnown(t *testing.T) {
	server, schemas := newServer(t)
	tried := map[string]bool{}
	for _, c := range keepings(t) {
		kind := "gpufabric_" + c.name
		tried[kind] = true
		p := &planner{server: server, name: kind, schema: schemas.ResourceSchemas[kind]}
		configured := func(name, value string) map[string]tftypes.Value {
			all := maps.Clone(c.base)
			all["name"] = `"x"`
			if name != "" {
				all[name] = value
			}
			text := "resource \"" + kind + "\" \"x\" {\n"
			for name, value := range all {
				text += "  " + name + " = " + value + "\n"
			}
			cfg, err := newCore(t).parse(text + "}\n")
			must(t, err)
			return fields(cfg.blocks[0].config)
		}
		created := p.plan(t, nil, configured("", ""))
		for name, want := range c.known {
			if !created[name].Equal(stringValue(want)) {
				t.Errorf("%s: the plan of a new one has %s = %s, want %q", c.name, name, created[name], want)
			}
		}
		prior := map[string]tftypes.Value{}
		for name, value := range created {
			if prior[name] = value; !value.IsFullyKnown() {
				prior[name] = sample(value.Type())
			}
		}
		change := func(name, value string, want ...string) {
			t.Helper()
			planned := p.plan(t, prior, configured(name, value))
			var unknown []string
			for name, value := range planned {
				if !value.IsFullyKnown() {
					unknown = append(unknown, name)
				}
			}
			slices.Sort(unknown)
			slices.Sort(want)
			if !slices.Equal(unknown, want) {
				t.Errorf("%s: a change of %s makes %v unknown, want %v", c.name, name, unknown, want)
			}
			if want, ok := c.after[name]; ok && !planned["resource"].Equal(stringValue(want)) {
				t.Errorf("%s: a change of %s plans %s, want %s", c.name, name, planned["resource"], want)
			}
		}
		common := map[string]string{"labels": `{ a = "b" }`, "annotations": `{ a = "b" }`, "force_conflicts": "true", "wait_for": `"ready"`,
			"timeouts": `{ create = "5m" }`, "name": "", "namespace": ""} // another name is another object
		maps.Copy(common, c.beside)
		for _, a := range p.schema.Block.Attributes {
			spec, inSpec := c.spec[a.Name]
			other, isCommon := common[a.Name]
			switch {
			case !a.Optional && !a.Required:
			case !inSpec && !isCommon:
				t.Errorf("%s: no change of %s is tried", c.name, a.Name)
			}
			if inSpec {
				change(a.Name, spec, slices.Clone(c.status)...)
			}
			if isCommon && other != "" {
				change(a.Name, other)
			}
		}
	}
	for kind := range schemas.ResourceSchemas {
		if !tried[kind] {
			t.Errorf("no change of %s is tried", kind)
		}
	}
}

// TestPlanShowsTheChartWhenValuesAreUnknown plans a stack whose values another resource has yet to make.
func TestPlanShowsTheChartWhenValuesAreUnknown(t *testing.T) {
	server, schemas := newServer(t)
	p := &planner{server: server, name: "gpufabric_driver_stack", schema: schemas.ResourceSchemas["gpufabric_driver_stack"]}
	planned := p.plan(t, nil, p.config(map[string]tftypes.Value{"chart": stringValue("testdata/stack"),
		"values": tftypes.NewValue(tftypes.List{ElementType: tftypes.String}, tftypes.UnknownValue)}))
	if !planned["chart_version"].Equal(stringValue("1.0.0")) || !planned["chart_digest"].IsKnown() {
		t.Errorf("chart_version %s, chart_digest %s", planned["chart_version"], planned["chart_digest"])
	}
}

// withNull returns values of a type that have one null element each, wherever the type has a list, set or map.
func withNull(kind tftypes.Type) []tftypes.Value {
	var out []tftypes.Value
	wrap := func(element tftypes.Type, of func(tftypes.Value) tftypes.Value) {
		out = append(out, of(tftypes.NewValue(element, nil)))
		for _, inner := range withNull(element) {
			out = append(out, of(inner))
		}
	}
	switch k := kind.(type) {
	case tftypes.List:
		wrap(k.ElementType, func(v tftypes.Value) tftypes.Value { return tftypes.NewValue(k, []tftypes.Value{v}) })
	case tftypes.Set:
		wrap(k.ElementType, func(v tftypes.Value) tftypes.Value { return tftypes.NewValue(k, []tftypes.Value{v}) })
	case tftypes.Map:
		wrap(k.ElementType, func(v tftypes.Value) tftypes.Value { return tftypes.NewValue(k, map[string]tftypes.Value{"k": v}) })
	case tftypes.Object:
		for name, attribute := range k.AttributeTypes {
			for _, inner := range withNull(attribute) {
				fields := map[string]tftypes.Value{}
				for other, t := range k.AttributeTypes {
					fields[other] = tftypes.NewValue(t, nil)
				}
				fields[name] = inner
				out = append(out, tftypes.NewValue(k, fields))
			}
		}
	}
	return out
}

// TestSchemasRejectNullElementAtPath puts a null, and an unknown, into every collection of every resource and data source.
func TestSchemasRejectNullElementAtPath(t *testing.T) {
	server, schemas := newServer(t)
	type validate func(*tfprotov6.DynamicValue) []*tfprotov6.Diagnostic
	tried := 0
	try := func(name string, schema *tfprotov6.Schema, check validate) {
		p := &planner{server: server, name: name, schema: schema}
		for _, a := range schema.Block.Attributes {
			if !a.Optional && !a.Required {
				continue
			}
			for _, value := range withNull(p.object().AttributeTypes[a.Name]) {
				tried++
				found := false
				for _, d := range check(p.pack(t, p.config(map[string]tftypes.Value{a.Name: value}))) {
					found = found || d.Summary == "Null element" && d.Attribute != nil
					if strings.Contains(d.Detail, "error in the provider") {
						t.Errorf("%s.%s = %s: %s", name, a.Name, value, d.Detail)
					}
				}
				if !found {
					t.Errorf("%s.%s = %s: no error names the null element", name, a.Name, value)
				}
			}
			unknown := tftypes.NewValue(p.object().AttributeTypes[a.Name], tftypes.UnknownValue)
			for _, d := range check(p.pack(t, p.config(map[string]tftypes.Value{a.Name: unknown}))) {
				if strings.Contains(d.Detail, "error in the provider") {
					t.Errorf("%s.%s unknown: %s", name, a.Name, d.Detail)
				}
			}
		}
	}
	for name, schema := range schemas.ResourceSchemas {
		try(name, schema, func(config *tfprotov6.DynamicValue) []*tfprotov6.Diagnostic {
			resp, err := server.ValidateResourceConfig(t.Context(), &tfprotov6.ValidateResourceConfigRequest{TypeName: name, Config: config,
				ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true}})
			must(t, err)
			return resp.Diagnostics
		})
	}
	for name, schema := range schemas.DataSourceSchemas {
		try(name, schema, func(config *tfprotov6.DynamicValue) []*tfprotov6.Diagnostic {
			resp, err := server.ValidateDataResourceConfig(t.Context(), &tfprotov6.ValidateDataResourceConfigRequest{TypeName: name, Config: config})
			must(t, err)
			return resp.Diagnostics
		})
	}
	if tried < 40 {
		t.Errorf("only %d collections were tried", tried)
	}
}
