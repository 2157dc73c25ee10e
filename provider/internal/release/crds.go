package release

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-log/tflog"
	"helm.sh/helm/v3/pkg/chart"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/object"
)

// releaseAnnotation records on a CRD or namespace which release created it, as namespace/name.
const releaseAnnotation = "gpufabric.io/release"

// ForeignCRDError names CRDs of the chart that something else installed.
type ForeignCRDError struct{ Names []string }

func (e *ForeignCRDError) Error() string {
	return fmt.Sprintf(
		"CustomResourceDefinitions of the chart are in the cluster already and were not installed by this release: %s",
		strings.Join(e.Names, ", "),
	)
}

// crdObjects reads the CRDs of a chart's crds directory.
func crdObjects(c *chart.Chart) ([]*unstructured.Unstructured, error) {
	var list []*unstructured.Unstructured
	for _, crd := range c.CRDObjects() {
		parsed, err := objects(string(crd.File.Data), "")
		if err != nil {
			return nil, fmt.Errorf("chart file %s: %w", crd.Filename, err)
		}
		for _, obj := range parsed {
			if obj.GetKind() == object.CRDKind.Name {
				list = append(list, obj)
			}
		}
	}
	return list, nil
}

// applyCRDs applies the chart's crds directory and waits until the API serves each. Helm itself would create them once and never
// upgrade them. It refuses CRDs of others before anything is changed.
func (m *Manager) applyCRDs(ctx context.Context, spec Spec, undo *undo) error {
	list, err := crdObjects(spec.Chart.chart)
	if err != nil || len(list) == 0 {
		return err
	}
	store := object.NewStore(m.client, object.CRDKind)
	release := spec.Namespace + "/" + spec.Name
	present := map[string]bool{}
	var foreign []string
	for _, crd := range list {
		found, err := store.Get(ctx, object.Key{Name: crd.GetName()})
		if err != nil {
			return err
		}
		if found == nil {
			continue
		}
		present[crd.GetName()] = true
		// A CRD without the note came from `helm install` of the same chart: taken over. One that notes another release is not.
		if owner := found.GetAnnotations()[releaseAnnotation]; owner != "" && owner != release {
			foreign = append(foreign, fmt.Sprintf("%s (of release %s)", crd.GetName(), owner))
		}
	}
	if len(foreign) > 0 {
		return &ForeignCRDError{foreign}
	}
	for _, crd := range list {
		annotations := crd.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[releaseAnnotation] = release
		crd.SetAnnotations(annotations)
		crd.SetNamespace("")
		name := crd.GetName()
		if !present[name] {
			undo.add("CustomResourceDefinition "+name, func(ctx context.Context) error {
				_, err := store.Delete(ctx, object.Key{Name: name}, object.Record{})
				return err
			})
		}
		// Forced: `helm install` may own the fields as a plain client, and the chart is the one source of its CRDs.
		_, err := m.client.Dynamic.Resource(
			object.CRDKind.GVR(),
		).Apply(
			ctx,
			name,
			crd,
			metav1.ApplyOptions{FieldManager: object.FieldManager, Force: true},
		)
		if err != nil {
			return fmt.Errorf("apply CustomResourceDefinition %s: %w", name, err)
		}
	}
	for _, crd := range list {
		if _, err := store.Wait(ctx, object.Key{Name: crd.GetName()}, object.Established); err != nil {
			return fmt.Errorf("wait until CustomResourceDefinition %s is established: %w", crd.GetName(), err)
		}
	}
	tflog.Info(ctx, "CRDs applied", map[string]any{"count": len(list), "release": release})
	return nil
}

// removeCRDs deletes CRDs and waits until they are gone.
func (m *Manager) removeCRDs(ctx context.Context, names []string) error {
	store := object.NewStore(m.client, object.CRDKind)
	for _, name := range names {
		if last, err := store.Delete(ctx, object.Key{Name: name}, object.Record{}); err != nil {
			if last != nil {
				return fmt.Errorf(
					"CustomResourceDefinition %s is still being deleted (finalizers %s): %w",
					name,
					strings.Join(last.GetFinalizers(), ", "),
					err,
				)
			}
			return fmt.Errorf("delete CustomResourceDefinition %s: %w", name, err)
		}
	}
	return nil
}

// ensureNamespace creates the namespace on request and records on it that this release did, so that the release removes it again.
func (m *Manager) ensureNamespace(ctx context.Context, spec Spec, undo *undo) error {
	store := object.NewStore(m.client, namespaces)
	found, err := store.Get(ctx, object.Key{Name: spec.Namespace})
	if err != nil {
		return err
	}
	if found != nil && found.GetDeletionTimestamp() != nil {
		tflog.Info(ctx, "waiting for the namespace to finish terminating", map[string]any{"namespace": spec.Namespace})
		if _, err := store.Wait(ctx, object.Key{Name: spec.Namespace}, object.Gone); err != nil {
			return fmt.Errorf(
				"namespace %s is still being deleted; see `kubectl get namespace %s -o yaml` for the remaining finalizers: %w",
				spec.Namespace,
				spec.Namespace,
				err,
			)
		}
		found = nil
	}
	if found != nil {
		return nil
	}
	if !spec.CreateNamespace {
		return fmt.Errorf("namespace %s does not exist; create it first or set create_namespace = true", spec.Namespace)
	}
	ns := store.New(object.Key{Name: spec.Namespace})
	ns.SetAnnotations(map[string]string{releaseAnnotation: spec.Namespace + "/" + spec.Name})
	made, err := store.Apply(ctx, ns, false)
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", spec.Namespace, err)
	}
	undo.add("namespace "+spec.Namespace, func(ctx context.Context) error {
		_, err := store.Delete(ctx, object.Key{Name: spec.Namespace}, object.Record{UID: made.GetUID()})
		return err
	})
	return nil
}

var namespaces = object.Kind{Version: "v1", Name: "Namespace", Plural: "namespaces"}
