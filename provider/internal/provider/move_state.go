package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	"gpufabric.io/provider/internal/object"
)

// MoveState lets a `moved` block adopt an object that a kubernetes_manifest created, without touching it: it only copies the name,
// and the refresh that follows reads the rest from the cluster.
func (r *objectResource[M]) MoveState(context.Context) []resource.StateMover {
	return []resource.StateMover{{StateMover: func(ctx context.Context, req resource.MoveStateRequest, resp *resource.MoveStateResponse) {
		if !movesFrom(req, "hashicorp/kubernetes", "kubernetes_manifest") {
			return
		}
		var manifest struct {
			APIVersion, Kind string
			Metadata         struct{ Name, Namespace string }
		}
		if !readDynamic(req.SourceRawState.JSON, "manifest", &manifest, &resp.Diagnostics) {
			return
		}
		if manifest.APIVersion != r.kind.APIVersion() || manifest.Kind != r.kind.Name {
			resp.Diagnostics.AddError(
				"Another kind of object",
				fmt.Sprintf("A gpufabric_%s is a %s of %s, and the kubernetes_manifest holds a %s of %s: remove the moved block.",
					r.name, r.kind.Name, r.kind.APIVersion(), manifest.Kind, manifest.APIVersion),
			)
			return
		}
		key := object.Key{Name: manifest.Metadata.Name}
		if r.kind.Namespaced {
			key.Namespace = or(manifest.Metadata.Namespace, "default")
		}
		resp.Diagnostics.Append(setKey(ctx, r.kind.Namespaced, key, resp)...)
	}}}
}

// MoveState lets a `moved` block adopt a release that a helm_release created. Chart and values come from the configuration, as
// after an import.
func (r *driverStackResource) MoveState(context.Context) []resource.StateMover {
	return []resource.StateMover{{StateMover: func(ctx context.Context, req resource.MoveStateRequest, resp *resource.MoveStateResponse) {
		if !movesFrom(req, "hashicorp/helm", "helm_release") {
			return
		}
		var release struct{ Name, Namespace string }
		if err := json.Unmarshal(req.SourceRawState.JSON, &release); err != nil || release.Name == "" {
			addUnreadable(&resp.Diagnostics, "helm_release", err)
			return
		}
		resp.Diagnostics.Append(setKey(ctx, true, object.Key{Namespace: or(release.Namespace, "default"), Name: release.Name}, resp)...)
	}}}
}

// movesFrom reports whether the source is a resource of a provider, whatever registry either came from.
func movesFrom(req resource.MoveStateRequest, provider, resourceType string) bool {
	return req.SourceTypeName == resourceType && strings.HasSuffix(req.SourceProviderAddress, "/"+provider) && req.SourceRawState != nil
}

// readDynamic reads an attribute of dynamic type, which Terraform stores as its value beside its type.
func readDynamic(state []byte, attribute string, into any, diags *diag.Diagnostics) bool {
	var attributes map[string]json.RawMessage
	err := json.Unmarshal(state, &attributes)
	var dynamic struct{ Value json.RawMessage }
	if err == nil {
		err = json.Unmarshal(attributes[attribute], &dynamic)
	}
	if err == nil {
		err = json.Unmarshal(dynamic.Value, into)
	}
	if err != nil {
		addUnreadable(diags, attribute, err)
	}
	return err == nil
}

func addUnreadable(diags *diag.Diagnostics, what string, err error) {
	diags.AddError(
		"State cannot be read",
		fmt.Sprintf(
			"The %s in the state has a form that this provider does not support: %v. Import the object instead, with an import block, and let the "+
				"old resource go with a removed block.",
			what,
			err,
		),
	)
}

func setKey(ctx context.Context, namespaced bool, key object.Key, resp *resource.MoveStateResponse) diag.Diagnostics {
	diags := resp.TargetState.SetAttribute(ctx, path.Root("id"), key.String())
	diags.Append(resp.TargetState.SetAttribute(ctx, path.Root("name"), key.Name)...)
	if namespaced {
		diags.Append(resp.TargetState.SetAttribute(ctx, path.Root("namespace"), key.Namespace)...)
	}
	if resp.TargetIdentity == nil {
		return diags
	}
	diags.Append(resp.TargetIdentity.SetAttribute(ctx, path.Root("name"), key.Name)...)
	if namespaced {
		diags.Append(resp.TargetIdentity.SetAttribute(ctx, path.Root("namespace"), key.Namespace)...)
	}
	return diags
}
