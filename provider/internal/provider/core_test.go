package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// core plays Terraform's core for configurations without references between blocks: it calls the provider at its protocol, in this
// process. It holds the provider to core's rules: a plan keeps what is configured, and an apply makes what was planned come true.
// Whatever else a test needs of Terraform (references, count, lifecycle, the program itself) runs under Terraform: see
// checkUnderTerraform and cli.
type core struct {
	t         testing.TB
	schemas   *tfprotov6.GetProviderSchemaResponse
	instances map[string]*instance
	data      map[string]tftypes.Value // data sources by address
	warnings  []string                 // of the last step
}

// instance is a resource in the state.
type instance struct {
	kind     string
	state    tftypes.Value
	private  []byte
	identity *tfprotov6.ResourceIdentityData
	tainted  bool
}

// change is a planned change of a resource. Its action is create, update, replace, delete or no-op.
type change struct {
	address, kind, action  string
	prior, config, planned tftypes.Value
	private                []byte
	identity               *tfprotov6.ResourceIdentityData
}

// listServer is a provider server with list resources; plugin-go still has the two interfaces apart.
type listServer interface {
	tfprotov6.ProviderServer
	tfprotov6.ListResourceServer
}

func newServer(t testing.TB) (listServer, *tfprotov6.GetProviderSchemaResponse) {
	t.Helper()
	server, ok := providerserver.NewProtocol6(New("test")())().(listServer)
	if !ok {
		t.Fatal("the provider serves no list resources")
	}
	schemas, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	must(t, err)
	return server, schemas
}

func newCore(t testing.TB) *core {
	t.Helper()
	_, schemas := newServer(t)
	return &core{t: t, schemas: schemas, instances: map[string]*instance{}, data: map[string]tftypes.Value{}}
}

func (c *core) pack(v tftypes.Value) *tfprotov6.DynamicValue {
	c.t.Helper()
	packed, err := tfprotov6.NewDynamicValue(v.Type(), v)
	must(c.t, err)
	return &packed
}

func (c *core) unpack(kind string, v *tfprotov6.DynamicValue) tftypes.Value {
	c.t.Helper()
	value, err := v.Unmarshal(c.schemas.ResourceSchemas[kind].ValueType())
	must(c.t, err)
	return value
}

// problems returns the errors of a call, with the attributes at fault, and keeps the warnings.
func (c *core) problems(diags []*tfprotov6.Diagnostic) error {
	var all []error
	for _, d := range diags {
		text := d.Summary + ": " + d.Detail
		if d.Attribute != nil {
			text += " (" + d.Attribute.String() + ")"
		}
		if d.Severity == tfprotov6.DiagnosticSeverityWarning {
			c.warnings = append(c.warnings, text)
			continue
		}
		all = append(all, errors.New(text))
	}
	return errors.Join(all...)
}

// connect starts a provider, as Terraform does for every command, and validates a configuration with it.
func (c *core) connect(ctx context.Context, cfg *configuration) (listServer, error) {
	server, _ := newServer(c.t)
	checked, err := server.ValidateProviderConfig(ctx, &tfprotov6.ValidateProviderConfigRequest{Config: c.pack(cfg.provider)})
	must(c.t, err)
	if err := c.problems(checked.Diagnostics); err != nil {
		return nil, err
	}
	var all []error
	for _, b := range cfg.blocks {
		if b.data {
			resp, err := server.ValidateDataResourceConfig(ctx, &tfprotov6.ValidateDataResourceConfigRequest{TypeName: b.kind,
				Config: c.pack(b.config)})
			must(c.t, err)
			all = append(all, c.problems(resp.Diagnostics))
			continue
		}
		resp, err := server.ValidateResourceConfig(ctx, &tfprotov6.ValidateResourceConfigRequest{TypeName: b.kind, Config: c.pack(b.config),
			ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true}})
		must(c.t, err)
		all = append(all, c.problems(resp.Diagnostics))
	}
	if err := errors.Join(all...); err != nil {
		return nil, err
	}
	resp, err := server.ConfigureProvider(ctx, &tfprotov6.ConfigureProviderRequest{TerraformVersion: "1.14.0", Config: c.pack(cfg.provider)})
	must(c.t, err)
	return server, c.problems(resp.Diagnostics)
}

// refresh reads every resource in the state.
func (c *core) refresh(ctx context.Context, server listServer) error {
	for _, address := range slices.Sorted(maps.Keys(c.instances)) {
		i := c.instances[address]
		resp, err := server.ReadResource(ctx, &tfprotov6.ReadResourceRequest{TypeName: i.kind, CurrentState: c.pack(i.state), Private: i.private,
			CurrentIdentity: i.identity})
		must(c.t, err)
		if err := c.problems(resp.Diagnostics); err != nil {
			return err
		}
		if i.state, i.private, i.identity = c.unpack(i.kind, resp.NewState), resp.Private, resp.NewIdentity; i.state.IsNull() {
			delete(c.instances, address)
			continue
		}
		if !i.state.IsFullyKnown() {
			return fmt.Errorf("%s is not wholly known after a refresh: %s", address, i.state)
		}
	}
	return nil
}

// plan plans a configuration: deletions first, as Terraform would order them without references.
func (c *core) plan(ctx context.Context, server listServer, blocks []block) ([]change, error) {
	var changes []change
	kept := map[string]bool{}
	for _, b := range blocks {
		kept[b.address] = true
	}
	for _, address := range slices.Sorted(maps.Keys(c.instances)) {
		if i := c.instances[address]; !kept[address] {
			gone := tftypes.NewValue(i.state.Type(), nil)
			planned, _, err := c.planOne(ctx, server, change{address: address, kind: i.kind, prior: i.state, config: gone, private: i.private,
				identity: i.identity})
			if err != nil {
				return nil, err
			}
			planned.action = "delete"
			changes = append(changes, planned)
		}
	}
	for _, b := range blocks {
		if b.data {
			if err := c.read(ctx, server, b); err != nil {
				return nil, err
			}
			continue
		}
		planned, err := c.planBlock(ctx, server, b)
		if err != nil {
			return nil, err
		}
		changes = append(changes, planned)
	}
	return changes, nil
}

func (c *core) planBlock(ctx context.Context, server listServer, b block) (change, error) {
	null := tftypes.NewValue(b.config.Type(), nil)
	ch := change{address: b.address, kind: b.kind, prior: null, config: b.config}
	if i := c.instances[b.address]; i != nil {
		ch.prior, ch.private, ch.identity = i.state, i.private, i.identity
	}
	planned, replace, err := c.planOne(ctx, server, ch)
	if err != nil {
		return planned, err
	}
	switch i := c.instances[b.address]; {
	case i == nil:
		planned.action = "create"
	case replace || i.tainted:
		fresh := change{address: b.address, kind: b.kind, prior: null, config: b.config, private: planned.private}
		if planned, _, err = c.planOne(ctx, server, fresh); err != nil {
			return planned, err
		}
		planned.action, planned.prior = "replace", i.state
	case planned.planned.Equal(i.state):
		planned.action = "no-op"
	default:
		planned.action = "update"
	}
	return planned, nil
}

// planOne plans one resource, and reports whether the change needs another object.
func (c *core) planOne(ctx context.Context, server listServer, ch change) (change, bool, error) {
	attributes := c.schemas.ResourceSchemas[ch.kind].Block.Attributes
	proposed := propose(attributes, ch.prior, ch.config)
	resp, err := server.PlanResourceChange(ctx, &tfprotov6.PlanResourceChangeRequest{TypeName: ch.kind, PriorState: c.pack(ch.prior),
		ProposedNewState: c.pack(proposed), Config: c.pack(ch.config), PriorPrivate: ch.private, PriorIdentity: ch.identity})
	must(c.t, err)
	if err := c.problems(resp.Diagnostics); err != nil {
		return ch, false, err
	}
	ch.planned, ch.private, ch.identity = c.unpack(ch.kind, resp.PlannedState), resp.PlannedPrivate, resp.PlannedIdentity
	if ch.planned.IsNull() != ch.config.IsNull() {
		return ch, false, fmt.Errorf("%s: a deletion, and nothing else, is planned as null", ch.address)
	}
	if !ch.config.IsNull() {
		if at := unfaithful(attributes, ch.config, ch.prior, ch.planned); at != "" {
			return ch, false, fmt.Errorf("%s: the plan of %s is not what is configured", ch.address, at)
		}
	}
	replace := false
	for _, at := range resp.RequiresReplace {
		before, _, _ := tftypes.WalkAttributePath(ch.prior, at)
		after, _, _ := tftypes.WalkAttributePath(ch.planned, at)
		old, isOld := before.(tftypes.Value)
		planned, isPlanned := after.(tftypes.Value)
		replace = replace || isOld != isPlanned || isOld && !old.Equal(planned)
	}
	return ch, replace && !ch.prior.IsNull() && !ch.config.IsNull(), nil
}

// read reads a data source, and puts it into the state beside the resources.
func (c *core) read(ctx context.Context, server listServer, b block) error {
	resp, err := server.ReadDataSource(ctx, &tfprotov6.ReadDataSourceRequest{TypeName: b.kind, Config: c.pack(b.config)})
	must(c.t, err)
	if err := c.problems(resp.Diagnostics); err != nil {
		return err
	}
	value, err := resp.State.Unmarshal(b.config.Type())
	must(c.t, err)
	if !value.IsFullyKnown() {
		return fmt.Errorf("%s is not wholly known: %s", b.address, value)
	}
	c.data[b.address] = value
	return nil
}

// apply makes planned changes.
func (c *core) apply(ctx context.Context, server listServer, changes []change) error {
	var all []error
	for _, ch := range changes {
		if ch.action == "no-op" {
			continue
		}
		null := tftypes.NewValue(ch.prior.Type(), nil)
		if ch.action == "delete" || ch.action == "replace" {
			gone := change{address: ch.address, kind: ch.kind, prior: ch.prior, config: null, planned: null,
				private: c.instances[ch.address].private}
			if err := c.applyOne(ctx, server, gone); err != nil {
				all = append(all, err)
				continue
			}
		}
		if ch.action == "replace" {
			ch.prior = null
		}
		if ch.action != "delete" {
			all = append(all, c.applyOne(ctx, server, ch))
		}
	}
	return errors.Join(all...)
}

func (c *core) applyOne(ctx context.Context, server listServer, ch change) error {
	resp, err := server.ApplyResourceChange(ctx, &tfprotov6.ApplyResourceChangeRequest{TypeName: ch.kind, PriorState: c.pack(ch.prior),
		PlannedState: c.pack(ch.planned), Config: c.pack(ch.config), PlannedPrivate: ch.private, PlannedIdentity: ch.identity})
	must(c.t, err)
	failed := c.problems(resp.Diagnostics)
	state := c.unpack(ch.kind, resp.NewState)
	if state.IsNull() {
		if delete(c.instances, ch.address); failed == nil && !ch.planned.IsNull() {
			failed = fmt.Errorf("%s is not in the state after its apply", ch.address)
		}
		return failed
	}
	c.instances[ch.address] = &instance{kind: ch.kind, state: state, private: resp.Private, identity: resp.NewIdentity,
		tainted: failed != nil && ch.prior.IsNull()}
	if failed == nil && (!state.IsFullyKnown() || !comesTrue(ch.planned, state)) {
		failed = fmt.Errorf("%s: the apply did not make the plan come true:\n%s\n%s", ch.address, ch.planned, state)
	}
	return failed
}

// propose merges what is configured with what the provider computed before.
func propose(attributes []*tfprotov6.SchemaAttribute, prior, config tftypes.Value) tftypes.Value {
	if config.IsNull() || !config.IsKnown() || prior.IsNull() {
		return config
	}
	before, merged := fields(prior), fields(config)
	for _, a := range attributes {
		switch {
		case merged[a.Name].IsNull() && a.Computed:
			merged[a.Name] = before[a.Name]
		case a.NestedType != nil && a.NestedType.Nesting == tfprotov6.SchemaObjectNestingModeSingle:
			merged[a.Name] = propose(a.NestedType.Attributes, before[a.Name], merged[a.Name])
		}
	}
	return tftypes.NewValue(config.Type(), merged)
}

// unfaithful names the first attribute whose plan is neither what is configured, nor what it was, nor the provider's to compute.
func unfaithful(attributes []*tfprotov6.SchemaAttribute, config, prior, planned tftypes.Value) string {
	configured, before, after := fields(config), fields(prior), fields(planned)
	for _, a := range attributes {
		want, got := configured[a.Name], after[a.Name]
		old, known := before[a.Name]
		switch {
		case a.WriteOnly && got.IsNull(), want.IsNull() && a.Computed, want.Equal(got), known && a.Computed && old.Equal(got), !want.IsKnown():
			continue
		case a.NestedType == nil || want.IsNull() || got.IsNull():
			return a.Name
		}
		wants, gots := elements(want, a.NestedType.Nesting), elements(got, a.NestedType.Nesting)
		if len(wants) != len(gots) {
			return a.Name
		}
		for i := range wants {
			if at := unfaithful(a.NestedType.Attributes, wants[i], tftypes.NewValue(wants[i].Type(), nil), gots[i]); at != "" {
				return a.Name + "." + at
			}
		}
	}
	return ""
}

// fields returns the attributes of an object; none of one that is null.
func fields(v tftypes.Value) map[string]tftypes.Value {
	all := map[string]tftypes.Value{}
	_ = v.As(&all) // null leaves it empty
	return maps.Clone(all)
}

// elements returns the objects of a nested attribute, in the order of their keys.
func elements(v tftypes.Value, nesting tfprotov6.SchemaObjectNestingMode) []tftypes.Value {
	switch nesting {
	case tfprotov6.SchemaObjectNestingModeSingle:
		return []tftypes.Value{v}
	case tfprotov6.SchemaObjectNestingModeMap:
		var all []tftypes.Value
		for _, name := range slices.Sorted(maps.Keys(fields(v))) {
			all = append(all, fields(v)[name])
		}
		return all
	}
	return items(v)
}

func items(v tftypes.Value) []tftypes.Value {
	var all []tftypes.Value
	_ = v.As(&all) // null leaves it empty
	return all
}

// comesTrue reports whether a value is what was planned of it.
func comesTrue(planned, got tftypes.Value) bool {
	kind := planned.Type()
	switch {
	case !planned.IsKnown():
		return true
	case planned.IsNull() || got.IsNull() || planned.IsFullyKnown():
		return planned.Equal(got)
	case kind.Is(tftypes.Object{}), kind.Is(tftypes.Map{}):
		before, after := fields(planned), fields(got)
		same := len(before) == len(after)
		for name, v := range before {
			_, there := after[name]
			same = same && there && comesTrue(v, after[name])
		}
		return same
	}
	before, after := items(planned), items(got)
	same := len(before) == len(after)
	for i := range before { // the items of a set have no order to compare by
		same = same && (kind.Is(tftypes.Set{}) || comesTrue(before[i], after[i]))
	}
	return same
}

// flatten writes a value in the form that test checks read: nodes.0.name, labels.%, drift.#.
func flatten(to map[string]string, name string, v tftypes.Value) {
	kind := v.Type()
	switch {
	case v.IsNull():
	case kind.Is(tftypes.Object{}), kind.Is(tftypes.Map{}):
		all := fields(v)
		if name != "" {
			to[name+".%"] = fmt.Sprint(len(all))
		}
		for key, value := range all {
			flatten(to, strings.TrimPrefix(name+"."+key, "."), value)
		}
	case kind.Is(tftypes.List{}), kind.Is(tftypes.Set{}), kind.Is(tftypes.Tuple{}):
		all := items(v)
		to[name+".#"] = fmt.Sprint(len(all))
		for i, value := range all {
			flatten(to, fmt.Sprintf("%s.%d", name, i), value)
		}
	case kind.Is(tftypes.String):
		var text string
		_ = v.As(&text)
		to[name] = text
	case kind.Is(tftypes.Bool):
		var on bool
		_ = v.As(&on)
		to[name] = fmt.Sprint(on)
	case kind.Is(tftypes.Number):
		n := new(big.Float)
		_ = v.As(n)
		to[name] = n.Text('f', -1)
	}
}
