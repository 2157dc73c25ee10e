package release

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	helm "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/object"
)

type proceed int

const (
	installIt proceed = iota
	upgradeIt
)

// staleAfter is how old another client's pending operation must be before it counts as dead. Helm's own default time-out is five minutes.
const staleAfter = 10 * time.Minute

// recover makes room for an install if a release record exists already. A release that works, or once did, has an owner, unless its
// creation was abandoned: then no state holds it, and it is taken over.
func (m *Manager) recover(ctx context.Context, last *Release, abandoned func(mark string) bool) (proceed, error) {
	status, mark := last.stored.Info.Status, last.stored.Labels[creationLabel]
	if status == helm.StatusUninstalled {
		return installIt, m.uninstallHelm(ctx, last.Name, undoTimeout) // only the history is left (helm uninstall --keep-history)
	}
	if abandoned(mark) {
		return m.recoverForUpgrade(ctx, last)
	}
	config, err := m.config(ctx)
	if err != nil {
		return installIt, err
	}
	_, err = config.Releases.Deployed(last.Name)
	if status != helm.StatusUninstalling && (status == helm.StatusDeployed || err == nil) {
		return installIt, &ExistsError{last}
	}
	return m.recoverForUpgrade(ctx, last)
}

// recoverForUpgrade handles a release whose last operation did not end: one that once was deployed is upgraded, one that never was
// is removed and installed again.
func (m *Manager) recoverForUpgrade(ctx context.Context, last *Release) (proceed, error) {
	status := last.stored.Info.Status
	if status == helm.StatusDeployed {
		return upgradeIt, nil
	}
	if status.IsPending() && last.stored.Labels[ownLabel] == "" {
		if since := last.stored.Info.LastDeployed.Time; time.Since(since) < staleAfter {
			return upgradeIt, &BusyError{last, since}
		}
	}
	tflog.Warn(ctx, "recovering a release whose last operation failed", map[string]any{
		"release": last.Name, "namespace": last.Namespace, "status": last.Status, "revision": last.Revision, "description": last.Description})
	config, err := m.config(ctx)
	if err != nil {
		return upgradeIt, err
	}
	_, err = config.Releases.Deployed(last.Name)
	switch {
	case errors.Is(err, driver.ErrNoDeployedReleases), errors.Is(err, driver.ErrReleaseNotFound), status == helm.StatusUninstalling:
		return installIt, m.uninstallHelm(ctx, last.Name, undoTimeout)
	case err != nil:
		return upgradeIt, err
	case status.IsPending():
		last.stored.SetStatus(helm.StatusFailed, "interrupted: "+last.Description)
		return upgradeIt, config.Releases.Update(last.stored)
	}
	return upgradeIt, nil
}

// uninstallHelm removes a release and its history; none is no error.
func (m *Manager) uninstallHelm(ctx context.Context, name string, hooks time.Duration) error {
	config, err := m.config(ctx)
	if err != nil {
		return err
	}
	uninstall := action.NewUninstall(config)
	uninstall.IgnoreNotFound = true
	uninstall.Timeout = hooks
	if last, err := config.Releases.Last(name); err == nil {
		uninstall.DisableHooks = ownHooksOnly(last)
	}
	_, err = uninstall.Run(name)
	return err
}

// ownHooksOnly reports whether all hooks of a release are this project's chart's. They clean the nodes by a pod, whose image may be
// unavailable; for a release of ours the provider does that work itself.
func ownHooksOnly(stored *helm.Release) bool {
	for _, hook := range stored.Hooks {
		if !strings.Contains(hook.Manifest, "app.kubernetes.io/part-of: gpufabric\n") {
			return false
		}
	}
	return true
}

// takeBack removes a release whose install failed, with the CRDs that this install created and Helm would keep. A CRD was created
// by it when it is not older than Helm's record of the release, by the API server's clock.
func (m *Manager) takeBack(ctx context.Context, name string) error {
	last, err := m.Get(ctx, name)
	if err != nil || last == nil {
		return err
	}
	_, left, err := last.customResources()
	if err != nil {
		return err
	}
	record, err := m.client.Typed.CoreV1().Secrets(
		m.namespace,
	).Get(
		ctx,
		fmt.Sprintf("sh.helm.release.v1.%s.v%d", name, last.Revision),
		metav1.GetOptions{},
	)
	if err != nil {
		return err
	}
	if err := m.uninstallHelm(ctx, name, undoTimeout); err != nil {
		return err
	}
	var made []string
	for _, crd := range left {
		found, err := object.NewStore(m.client, object.CRDKind).Get(ctx, object.Key{Name: crd})
		if err != nil {
			return err
		}
		if found != nil && !found.GetCreationTimestamp().Time.Before(record.CreationTimestamp.Time) {
			made = append(made, crd)
		}
	}
	return m.removeCRDs(ctx, made)
}
