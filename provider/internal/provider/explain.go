package provider

import (
	"errors"
	"fmt"
	"strings"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/maintenance"
	"gpufabric.io/provider/internal/object"
	"gpufabric.io/provider/internal/release"
	"gpufabric.io/provider/internal/validation"
)

// explain converts every error of the lower packages to a summary and a detail with the remedy.
func explain(doing string, err error) (summary, detail string) {
	var (
		conflict *object.ConflictError
		exists   *object.ExistsError
		held     *object.HeldError
		replaced *object.ReplacedError
		missing  *object.MissingKindError
		blocked  *release.BlockedError
		release_ *release.ExistsError
		busy     *release.BusyError
		failed   *validation.FailedError
		taken    *validation.TakenError
		absent   *maintenance.MissingError
		stuck    *maintenance.StuckError
		foreign  *release.ForeignCRDError
		locked   *release.LockedError
		drifts   *release.DriftError

		reinstalled *release.ReplacedError
		stackHeld   *release.HeldError
	)
	switch {
	case errors.As(err, &conflict):
		return "Fields owned by someone else", fmt.Sprintf("Could not %s: other clients set these fields to other values:\n%s\n\n"+
			"Agree on one owner: remove the field from this configuration, or let the other client give it up, or set force_conflicts = true to "+
			"take it over.", doing, fieldList(conflict))
	case errors.As(err, &exists):
		return exists.Kind + " exists already", fmt.Sprintf(
			"Could not %s: it is in the cluster already, managed by %s%s, and not in Terraform's state. "+
				"Bring it under Terraform with an import block (id = %q) or choose another name.",
			doing,
			strings.Join(exists.Managers, ", "),
			others(exists),
			exists.Key,
		)
	case errors.As(err, &held):
		return held.Kind.Name + " of a Terraform state", ofAnotherState(doing, held, held.Release())
	case errors.As(err, &stackHeld):
		return "Release of a Terraform state", ofAnotherState(doing, stackHeld, stackHeld.Command())
	case errors.As(err, &replaced):
		return replaced.Kind + " belongs to somebody else now", fmt.Sprintf(
			"Could not %s: the object in the state (UID %s) no longer exists. The cluster has another one of the same name (UID %s, managed by "+
				"%s), which is left alone. Plan again, and bring that one under Terraform with an import block (id = %q) or choose another name.",
			doing, replaced.Record.UID, replaced.Found.UID, strings.Join(replaced.Managers, ", "), replaced.Key)
	case errors.As(err, &missing):
		return "Kind not installed", fmt.Sprintf(
			"Could not %s: the cluster has no CustomResourceDefinition %s, and none appeared within the time-out. "+
				"Install the drivers first; where a gpufabric_driver_stack does so in this configuration, add it to depends_on.",
			doing,
			missing.CRD,
		)
	case errors.As(err, &blocked):
		return "Drivers still in use", fmt.Sprintf("Could not %s, and nothing was removed, since these need the drivers:\n%s\n\n"+
			"Delete them (or wait until they are gone) and destroy again.", doing, blocked)
	case errors.As(err, &release_):
		r := release_.Release
		return "Release exists already", fmt.Sprintf(
			"Could not %s: Helm release %s (chart %s, revision %d, %s) is in namespace %s already: another client's or configuration's, or with "+
				"create_before_destroy the one that is to be replaced, which needs another name. Bring it under Terraform with an import "+
				"block (id = \"%s/%s\") or choose another name.",
			doing,
			r.Name,
			r.ChartVersion,
			r.Revision,
			r.Status,
			r.Namespace,
			r.Namespace,
			r.Name,
		)
	case errors.As(err, &busy):
		return "Release is being changed", fmt.Sprintf(
			"Could not %s: %v. Wait until it has ended; if it is dead, run `helm rollback %s -n %s` or try again ten minutes after its start, "+
				"when it counts as dead.",
			doing,
			busy,
			busy.Release.Name,
			busy.Release.Namespace,
		)
	case errors.As(err, &locked):
		return "Another run is at work", fmt.Sprintf("Could not %s: %v. Wait until it has ended, and apply again.", doing, locked)
	case errors.As(err, &reinstalled):
		return "Release of somebody else", fmt.Sprintf("Could not %s: %v. Plan again, and import it or choose another name.", doing, reinstalled)
	case errors.As(err, &drifts):
		return "Drift that comes back", fmt.Sprintf("Could not %s for good. The release is as configured, but others changed these again "+
			"at once:\n%s\n\nStop the client that is named, or accept its changes: copy an entry up to its verb into drift_ignore.", doing,
			strings.Join(drifts.Sentences, "\n"))
	case errors.As(err, &foreign):
		return "CRDs of another owner", fmt.Sprintf(
			"Could not %s: %v. Two drivers cannot serve one kind: remove the other one first.",
			doing,
			foreign,
		)
	case errors.As(err, &failed):
		return "Fabric not proven", fmt.Sprintf(
			"Could not %s:\n%s\n\nWith keep = true job and domain stay to be looked at.",
			doing,
			strings.Join(failed.Reasons, "\n"),
		)
	case errors.As(err, &taken):
		return taken.Kind + " exists already", fmt.Sprintf(
			"Could not %s: %v, and the action makes and removes one of its own. Choose another name, or delete it where an earlier run "+
				"with keep = true left it.",
			doing,
			taken,
		)
	case errors.As(err, &absent):
		return absent.What, fmt.Sprintf("Could not %s: %s.", doing, absent)
	case errors.As(err, &stuck):
		return "Not done in time", fmt.Sprintf("Could not %s in time. Waiting for:\n%s", doing, strings.Join(stuck.Waiting, "\n"))
	}
	return cluster.Explain(doing, err)
}

// ofAnotherState explains how to import an object of another state.
func ofAnotherState(doing string, held error, release string) string {
	return fmt.Sprintf("Could not %s: %v. Two states must not have one object: both would change it, and either would delete it.\n\n"+
		"To move it here, run `terraform state rm` for it in the other configuration, release it with\n  %s\nand import it again. Release it in "+
		"the same way where the other state is lost, and where this state had the object and forgot it.", doing, held, release)
}

// others adds to an object's field managers which Terraform state holds it.
func others(e *object.ExistsError) string {
	switch {
	case e.Creating:
		return fmt.Sprintf(" (another run of Terraform is creating it, or was killed while it did, on another machine or in another directory: "+
			"then release it with `%s`)", e.Release)
	case e.Owner != "":
		return fmt.Sprintf(" (a Terraform state holds it, with %q in its annotation %s: another configuration's, from which `terraform state "+
			"rm` and then `%s` release it, or with create_before_destroy the object that is to be replaced, which needs another "+
			"name)",
			e.Owner, object.OwnerAnnotation, e.Release)
	}
	return ""
}

func fieldList(c *object.ConflictError) string {
	lines := make([]string, len(c.Conflicts))
	for i, f := range c.Conflicts {
		lines[i] = fmt.Sprintf("  %s is owned by %s", f.Field, f.Manager)
	}
	return strings.Join(lines, "\n")
}
