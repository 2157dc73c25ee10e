package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
)

// check runs the steps of one test against core, with the same meaning as under Terraform, and destroys at the end what they made.
func check(t *testing.T, steps ...resource.TestStep) {
	t.Helper()
	c := newCore(t)
	last := ""
	defer func() {
		if len(c.instances) == 0 {
			return
		}
		cfg, err := c.parse(last)
		if err == nil {
			cfg.blocks = nil
			err = c.converge(context.Background(), cfg, nil)
		}
		if err != nil {
			t.Errorf("destroy at the end: %v", err)
		}
	}()
	for i, s := range steps {
		if s.PreConfig != nil {
			s.PreConfig()
		}
		if s.Config != "" {
			last = s.Config
		}
		c.warnings = nil
		err := c.step(s, last)
		switch {
		case s.ExpectError != nil && err == nil:
			t.Fatalf("step %d: no error, want %s", i+1, s.ExpectError)
		case s.ExpectError != nil && !s.ExpectError.MatchString(err.Error()):
			t.Fatalf("step %d: want %s, got\n%v", i+1, s.ExpectError, err)
		case s.ExpectError == nil && err != nil:
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
}

func (c *core) step(s resource.TestStep, config string) error {
	if s.ConfigDirectory != nil || s.ConfigStateChecks != nil || s.RefreshPlanChecks.PostRefresh != nil ||
		s.ConfigPlanChecks.PostApplyPreRefresh != nil {
		return errors.New("core does not play this step: run it under Terraform")
	}
	ctx := c.t.Context()
	cfg, err := c.parse(config)
	switch {
	case err != nil:
		return err
	case s.ImportState:
		return c.verifyImport(ctx, cfg, s)
	case s.Destroy:
		cfg.blocks = nil
		return c.converge(ctx, cfg, &s)
	case !s.PlanOnly && !s.RefreshState:
		if err := c.converge(ctx, cfg, &s); err != nil {
			return err
		}
	}
	changes, err := c.preview(ctx, cfg)
	if err == nil && s.RefreshState && s.Check != nil {
		err = s.Check(c.shown())
	}
	if err != nil {
		return err
	}
	var changed []string
	for _, ch := range changes {
		if ch.action != "no-op" {
			changed = append(changed, fmt.Sprintf("%s %s: %s to %s", ch.action, ch.address, ch.prior, ch.planned))
		}
	}
	if (len(changed) > 0) != s.ExpectNonEmptyPlan {
		return fmt.Errorf("the plan is empty: %t, want %t:\n%s", len(changed) == 0, !s.ExpectNonEmptyPlan, strings.Join(changed, "\n"))
	}
	return nil
}

// preview refreshes the state and plans, as `terraform plan` does.
func (c *core) preview(ctx context.Context, cfg *configuration) ([]change, error) {
	server, err := c.connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := c.refresh(ctx, server); err != nil {
		return nil, err
	}
	return c.plan(ctx, server, cfg.blocks)
}

// planText plans a configuration and returns the changes, with the warnings in one line.
func (c *core) planText(text string) ([]change, string) {
	c.t.Helper()
	cfg, err := c.parse(text)
	must(c.t, err)
	c.warnings = nil
	changes, err := c.preview(c.t.Context(), cfg)
	must(c.t, err)
	return changes, oneLine(strings.Join(c.warnings, "\n"))
}

// run applies a configuration and returns the warnings in one line.
func (c *core) run(text string) string {
	c.t.Helper()
	cfg, err := c.parse(text)
	must(c.t, err)
	c.warnings = nil
	must(c.t, c.converge(c.t.Context(), cfg, nil))
	return oneLine(strings.Join(c.warnings, "\n"))
}

// invoke plans and invokes the one action of a configuration, and returns its progress and warnings in one line.
func (c *core) invoke(ctx context.Context, text string) (string, error) {
	cfg, err := c.parse(text)
	if err != nil {
		return "", err
	}
	connected, err := c.connect(ctx, cfg)
	if err != nil {
		return "", err
	}
	server, ok := connected.(tfprotov6.ActionServer)
	if !ok || len(cfg.actions) != 1 {
		return "", errors.New("the provider serves no actions, or the configuration has not one")
	}
	kind, config := cfg.actions[0].kind, c.pack(cfg.actions[0].config)
	c.warnings = nil
	checked, err := server.ValidateActionConfig(ctx, &tfprotov6.ValidateActionConfigRequest{ActionType: kind, Config: config})
	must(c.t, err)
	if err := c.problems(checked.Diagnostics); err != nil {
		return "", err
	}
	planned, err := server.PlanAction(ctx, &tfprotov6.PlanActionRequest{ActionType: kind, Config: config})
	must(c.t, err)
	if err := c.problems(planned.Diagnostics); err != nil {
		return "", err
	}
	stream, err := server.InvokeAction(ctx, &tfprotov6.InvokeActionRequest{ActionType: kind, Config: config})
	must(c.t, err)
	failed := errors.New("the action did not complete")
	var lines []string
	for event := range stream.Events {
		switch e := event.Type.(type) {
		case tfprotov6.ProgressInvokeActionEventType:
			lines = append(lines, e.Message)
		case tfprotov6.CompletedInvokeActionEventType:
			failed = c.problems(e.Diagnostics)
		}
	}
	return oneLine(strings.Join(append(lines, c.warnings...), "\n")), failed
}

// converge plans and applies, each with a provider of its own, and makes a step's checks between and after.
func (c *core) converge(ctx context.Context, cfg *configuration, s *resource.TestStep) error {
	changes, err := c.preview(ctx, cfg)
	if err != nil {
		return err
	}
	if s != nil {
		for _, p := range s.ConfigPlanChecks.PreApply {
			resp := plancheck.CheckPlanResponse{}
			if p.CheckPlan(ctx, plancheck.CheckPlanRequest{Plan: planned(changes)}, &resp); resp.Error != nil {
				return resp.Error
			}
		}
	}
	server, err := c.connect(ctx, cfg)
	if err != nil {
		return err
	}
	if err := c.apply(ctx, server, changes); err != nil || s == nil || s.Check == nil {
		return err
	}
	return s.Check(c.shown())
}

// planned writes changes as plan checks read them.
func planned(changes []change) *tfjson.Plan {
	actions := map[string]tfjson.Actions{"create": {tfjson.ActionCreate}, "update": {tfjson.ActionUpdate}, "delete": {tfjson.ActionDelete},
		"replace": {tfjson.ActionDelete, tfjson.ActionCreate}, "no-op": {tfjson.ActionNoop}}
	plan := &tfjson.Plan{}
	for _, ch := range changes {
		plan.ResourceChanges = append(plan.ResourceChanges, &tfjson.ResourceChange{Address: ch.address, Type: ch.kind,
			Change: &tfjson.Change{Actions: actions[ch.action]}})
	}
	return plan
}

// shown writes the state as test checks read it.
func (c *core) shown() *terraform.State {
	module := &terraform.ModuleState{Path: []string{"root"}, Resources: map[string]*terraform.ResourceState{}}
	show := func(address string, attributes map[string]string) {
		module.Resources[address] = &terraform.ResourceState{Type: strings.Split(address, ".")[0],
			Primary: &terraform.InstanceState{ID: attributes["id"], Attributes: attributes}}
	}
	for address, i := range c.instances {
		attributes := map[string]string{}
		flatten(attributes, "", i.state)
		show(address, attributes)
	}
	for address, value := range c.data {
		attributes := map[string]string{}
		flatten(attributes, "", value)
		show(address, attributes)
	}
	return &terraform.State{Modules: []*terraform.ModuleState{module}}
}

// verifyImport imports a resource by its id and compares what comes with the state. The import is refused as long as the resource's object
// has the state's mark.
func (c *core) verifyImport(ctx context.Context, cfg *configuration, s resource.TestStep) error {
	server, err := c.connect(ctx, cfg)
	if err != nil {
		return err
	}
	have, want := c.instances[s.ResourceName], map[string]string{}
	flatten(want, "", have.state)
	if _, err = c.importOne(ctx, server, have.kind, want["id"]); err == nil {
		return errors.New("the import succeeds while the state has the object")
	}
	object := markedObject(c.t, cfg.dynamicClient(c.t), have.kind, want["id"])
	mark := object.mark(c.t)
	object.release(c.t, err.Error())
	imported, err := c.importOne(ctx, server, have.kind, want["id"])
	object.set(c.t, mark)
	if err != nil {
		return err
	}
	got := map[string]string{}
	if imported != nil {
		flatten(got, "", imported.state)
	}
	ignored := func(name string, _ string) bool {
		return slices.ContainsFunc(append(s.ImportStateVerifyIgnore, "timeouts"), func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		})
	}
	maps.DeleteFunc(want, ignored)
	maps.DeleteFunc(got, ignored)
	if !maps.Equal(want, got) {
		return fmt.Errorf("the import differs from the state:\n%v\n%v", got, want)
	}
	return nil
}

// importOne imports a resource by its id, and reads it; nil where the object does not exist.
func (c *core) importOne(ctx context.Context, server listServer, kind, id string) (*instance, error) {
	resp, err := server.ImportResourceState(ctx, &tfprotov6.ImportResourceStateRequest{TypeName: kind, ID: id})
	must(c.t, err)
	if err := c.problems(resp.Diagnostics); err != nil {
		return nil, err
	}
	imported := resp.ImportedResources[0]
	other := &core{t: c.t, schemas: c.schemas, instances: map[string]*instance{"": {kind: kind, private: imported.Private,
		state: c.unpack(kind, imported.State), identity: imported.Identity}}}
	err = other.refresh(ctx, server)
	return other.instances[""], err
}
