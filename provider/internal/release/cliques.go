package release

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-log/tflog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/cliques"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/provider/internal/domain"
)

// cliquePrefix is the prefix of the ComputeDomains that the controller keeps for cliques.
const cliquePrefix = "clique-"

// standsForClique reports whether the controller keeps a ComputeDomain for an NVLink clique (computeDomains.imex: clique or
// host). It goes with the drivers, and nobody else can remove it for good.
func standsForClique(obj metav1.Object, namespace string) bool {
	clique := obj.GetLabels()[v1beta1.LabelClique]
	return clique != "" && obj.GetNamespace() == namespace && strings.HasPrefix(obj.GetName(), cliquePrefix)
}

// retireCliques makes the controller remove these ComputeDomains and their IMEX daemons, and waits until they are gone. The drivers
// must run meanwhile: a daemon's pod ends only where a node plugin takes its devices back, and the controller creates the domains
// again until its --imex changes.
func (m *Manager) retireCliques(ctx context.Context) error {
	reported := false
	for {
		standing, err := m.cliques(ctx)
		if err != nil || len(standing) == 0 {
			return err
		}
		if !reported {
			if err := m.keepNoCliques(ctx); err != nil {
				return err
			}
			reported = true
			tflog.Info(ctx, "waiting for the IMEX daemons of the cliques to end", map[string]any{"cliques": len(standing)})
		}
		select {
		case <-ctx.Done():
			return &BlockedError{standing}
		case <-time.After(blockerInterval):
		}
	}
}

// cliques are the ComputeDomains of cliques.
func (m *Manager) cliques(ctx context.Context) ([]Blocker, error) {
	domains := m.client.Dynamic.Resource(domain.Kind.GVR()).Namespace(m.namespace)
	found, err := domains.List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelClique})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for ComputeDomains of cliques: %w", err)
	}
	var standing []Blocker
	for i := range found.Items {
		if one := &found.Items[i]; standsForClique(one, m.namespace) {
			standing = append(standing, Blocker{
				What: "ComputeDomain " + one.GetNamespace() + "/" + one.GetName(), Why: "the controller has not removed it yet",
				Deleting: one.GetDeletionTimestamp() != nil,
			})
		}
	}
	return standing, nil
}

// keepNoCliques makes the controller stop keeping ComputeDomains for cliques.
func (m *Manager) keepNoCliques(ctx context.Context) error {
	deployments := m.client.Typed.AppsV1().Deployments(m.namespace)
	found, err := deployments.List(ctx, metav1.ListOptions{LabelSelector: controllerLabels})
	if err != nil {
		return fmt.Errorf("look for the controller: %w", err)
	}
	for i := range found.Items {
		patch := cliques.StopKeeping(found.Items[i].Spec.Template.Spec.Containers)
		if len(patch) == 0 {
			continue
		}
		data, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		name := found.Items[i].Name
		if _, err := deployments.Patch(ctx, name, apitypes.JSONPatchType, data, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("stop controller %s/%s from keeping ComputeDomains for cliques: %w", m.namespace, name, err)
		}
	}
	return nil
}
