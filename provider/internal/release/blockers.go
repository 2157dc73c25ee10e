package release

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-log/tflog"
	resourcev1 "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpufabric.io/provider/internal/domain"
	"gpufabric.io/provider/internal/object"
)

// Blocker is an object that needs the drivers.
type Blocker struct {
	What     string // "ComputeDomain team/rack", "ResourceClaim team/x of driver gpu.nvidia.com"
	Why      string // the pod or claim that has it
	Deleting bool
}

// BlockedError names the objects that prevent the removal of a release.
type BlockedError struct{ Blockers []Blocker }

func (e *BlockedError) Error() string {
	const shown = 20
	lines := make([]string, 0, shown+1)
	for i, b := range e.Blockers {
		if i == shown {
			lines = append(lines, fmt.Sprintf("and %d more", len(e.Blockers)-shown))
			break
		}
		lines = append(lines, b.What+" ("+b.Why+")")
	}
	return strings.Join(lines, "\n")
}

// blockerInterval is how often to look for blockers: they are of several kinds that come and go with CRDs, so that one list each is
// cheaper and simpler than a watch each.
const blockerInterval = 500 * time.Millisecond

// awaitUnblocked waits until nothing needs the drivers. It gives up without progress for patience: no blocker was removed or marked for
// deletion. If ctx ends in the middle of a look, it reports the blockers of the look before.
func (m *Manager) awaitUnblocked(ctx context.Context, crdNames, drivers []string, patience time.Duration) error {
	var before string
	var blocked *BlockedError
	moved := time.Now()
	for {
		blockers, err := m.blockers(ctx, crdNames, drivers)
		if err != nil && ctx.Err() != nil && blocked != nil {
			return blocked
		}
		if err != nil {
			return err
		}
		if len(blockers) == 0 {
			return nil
		}
		blocked = &BlockedError{blockers}
		if now := blocked.Error(); now != before {
			before, moved = now, time.Now()
			tflog.Info(ctx, "waiting for objects that still need the drivers", map[string]any{"count": len(blockers), "blockers": now})
		}
		// Objects that are being deleted end when their controller is done; only the caller's time-out bounds that.
		idle := !slices.ContainsFunc(blockers, func(b Blocker) bool { return b.Deleting })
		if idle && time.Since(moved) > patience {
			return blocked
		}
		select {
		case <-ctx.Done():
			return blocked
		case <-time.After(blockerInterval):
		}
	}
}

func (m *Manager) blockers(ctx context.Context, crdNames, drivers []string) ([]Blocker, error) {
	var list []Blocker
	for _, name := range crdNames {
		found, err := m.objectsOf(ctx, name)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	claims, err := m.claimsInUse(ctx, drivers)
	return append(list, claims...), err
}

func (m *Manager) objectsOf(ctx context.Context, crdName string) ([]Blocker, error) {
	crd, err := object.NewStore(m.client, object.CRDKind).Get(ctx, object.Key{Name: crdName})
	if err != nil || crd == nil {
		return nil, err
	}
	definition, err := object.Read[apiextensionsv1.CustomResourceDefinition](crd)
	if err != nil {
		return nil, err
	}
	names, version := definition.Spec.Names, servedVersion(definition)
	if version == "" {
		return nil, nil
	}
	gvr := schema.GroupVersionResource{Group: definition.Spec.Group, Version: version, Resource: names.Plural}
	found, err := m.client.Dynamic.Resource(gvr).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Blocker
	for _, obj := range found.Items {
		if crdName == domain.Kind.CRD() && standsForClique(&obj, m.namespace) {
			continue // retireCliques
		}
		b := Blocker{What: names.Kind + " " + object.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}.String(), Why: "not being deleted"}
		if obj.GetDeletionTimestamp() != nil {
			b.Deleting = true
			b.Why = "being deleted, held by finalizers " + strings.Join(obj.GetFinalizers(), ", ")
		}
		list = append(list, b)
	}
	return list, nil
}

func servedVersion(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if v.Served {
			return v.Name
		}
	}
	return ""
}

// claimsInUse finds claims that a pod has: without the plugin, the kubelet could not unprepare them and the pods would stay Terminating.
func (m *Manager) claimsInUse(ctx context.Context, drivers []string) ([]Blocker, error) {
	if len(drivers) == 0 {
		return nil, nil
	}
	claims, err := m.client.Typed.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Blocker
	for _, c := range claims.Items {
		driver := allocatedBy(&c, drivers)
		if driver == "" || len(c.Status.ReservedFor) == 0 || c.Namespace == m.namespace {
			continue // claims in the release's own namespace are those of its daemons, which go with it
		}
		var users []string
		for _, u := range c.Status.ReservedFor {
			users = append(users, u.Resource+"/"+u.Name)
		}
		list = append(list, Blocker{
			What:     fmt.Sprintf("ResourceClaim %s/%s of driver %s", c.Namespace, c.Name, driver),
			Why:      "in use by " + strings.Join(users, ", "),
			Deleting: c.DeletionTimestamp != nil,
		})
	}
	return list, nil
}

func allocatedBy(c *resourcev1.ResourceClaim, drivers []string) string {
	if c.Status.Allocation == nil {
		return ""
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if slices.Contains(drivers, r.Driver) {
			return r.Driver
		}
	}
	return ""
}
