package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"gpufabric.io/provider/internal/object"
)

// Matches reports whether the release is deployed with spec's chart and values.
func (r *Release) Matches(spec Spec) bool {
	return r.Status == "deployed" && r.ChartDigest == spec.Chart.Digest && maps.Equal(Flatten(r.Values), Flatten(spec.Values))
}

// Drift is how an object in the cluster differs from the release's manifest.
type Drift struct {
	Object  string       // for messages: "DaemonSet gpufabric-system/gpufabric-gpu-plugin"
	Missing bool         // the object does not exist
	Unfit   string       // why the cluster does not take the object of the manifest at all; Fields is empty then
	Fields  []difference // what differs

	want, have *unstructured.Unstructured
	client     dynamic.ResourceInterface
	secret     bool // a Secret: no value may be shown
}

// driftWorkers bounds the requests of one comparison that are under way at once.
const driftWorkers = 8

// Drift compares each object of the release's manifest with the cluster, whole: a dry run of an update gives the object as the API
// server would store it, with its defaults and without anything that others added. A difference that ignored names is left out.
// Objects come in the manifest's order.
func (m *Manager) Drift(ctx context.Context, r *Release, ignored Ignored) ([]Drift, error) {
	list, err := objects(r.Manifest, r.Namespace)
	if err != nil {
		return nil, err
	}
	getter, err := m.client.Getter(m.namespace)
	if err != nil {
		return nil, err
	}
	mapper, err := getter.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	found := make([]*Drift, len(list))
	var discovery sync.Mutex // the mapper resets its cache without a lock of its own
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(driftWorkers)
	for i, want := range list {
		group.Go(func() error {
			discovery.Lock()
			gvk := want.GroupVersionKind()
			mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
			discovery.Unlock()
			if meta.IsNoMatchError(err) {
				r.mark(want)
				found[i] = &Drift{Object: want.GetKind() + " " + want.GetName(), Missing: true, want: want}
				return nil
			}
			if err != nil {
				return err
			}
			found[i], err = m.compare(ctx, r, want, mapping, ignored)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var drift []Drift
	for _, d := range found {
		if d != nil {
			drift = append(drift, *d)
		}
	}
	return drift, nil
}

// compare returns how one object differs; nil where it does not.
func (m *Manager) compare(ctx context.Context, r *Release, want *unstructured.Unstructured, mapping *meta.RESTMapping, ignored Ignored) (
	*Drift, error) {
	want = want.DeepCopy()
	d := &Drift{want: want, secret: want.GetKind() == "Secret"}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		d.Object = want.GetKind() + " " + object.Key{Namespace: want.GetNamespace(), Name: want.GetName()}.String()
		d.client = m.client.Dynamic.Resource(mapping.Resource).Namespace(want.GetNamespace())
	} else {
		want.SetNamespace("")
		d.Object = want.GetKind() + " " + want.GetName()
		d.client = m.client.Dynamic.Resource(mapping.Resource)
	}
	r.mark(want)
	if err := d.look(ctx); err != nil {
		return nil, err
	}
	if d.Missing && ignored.matches(d.Object, "") {
		return nil, nil
	}
	if d.Missing {
		return d, nil
	}
	d.Fields = slices.DeleteFunc(d.Fields, func(f difference) bool { return ignored.matches(d.Object, f.path.String()) })
	if len(d.Fields) == 0 {
		return nil, nil
	}
	return d, nil
}

// look reads the stored object and fills in how it differs. An object that changes between the two requests is read again.
func (d *Drift) look(ctx context.Context) error {
	for {
		have, err := d.client.Get(ctx, d.want.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			d.Missing = true
			return nil
		}
		if err != nil {
			return err
		}
		expected := d.want.DeepCopy()
		leaveToOthers(expected, have)
		d.have = have
		dryRun := metav1.UpdateOptions{FieldManager: object.FieldManager, DryRun: []string{metav1.DryRunAll}}
		stored, err := d.client.Update(ctx, expected, dryRun)
		switch {
		case err == nil:
			d.Fields = differences(stored.Object, have.Object, have.GetManagedFields())
		case apierrors.IsConflict(err):
			continue
		case apierrors.IsNotFound(err):
			d.Missing = true
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
			// An immutable field, no right to update, or a webhook that does not take a dry run: only the manifest has the expected value.
			if d.Fields = contradictions(expected.Object, have.Object, have.GetManagedFields()); len(d.Fields) > 0 && apierrors.IsInvalid(err) {
				d.Unfit = err.Error()
			}
		default:
			return err
		}
		return nil
	}
}

// mark adds the metadata by which Helm recognizes the objects of a release.
func (r *Release) mark(obj *unstructured.Unstructured) {
	annotations, labels := obj.GetAnnotations(), obj.GetLabels()
	if annotations == nil {
		annotations = map[string]string{}
	}
	if labels == nil {
		labels = map[string]string{}
	}
	annotations["meta.helm.sh/release-name"], annotations["meta.helm.sh/release-namespace"] = r.Name, r.Namespace
	labels["app.kubernetes.io/managed-by"] = "Helm"
	obj.SetAnnotations(annotations)
	obj.SetLabels(labels)
}

// Sentences returns one sentence for each difference: the objects that are gone, the fields that were changed, and by which manager. It
// shows no value of a Secret, and none that a user gave the chart, which may be secret.
func (r *Release) Sentences(drift []Drift) []string {
	var given []string
	for _, v := range Flatten(r.Values) {
		if len(v) >= shortestValue {
			given = append(given, v)
		}
	}
	var sentences []string
	for _, d := range drift {
		if d.Missing {
			sentences = append(sentences, d.Object+" was deleted")
		}
		for _, f := range d.Fields {
			sentences = append(sentences, d.Object+": "+f.sentence(d.secret, given))
		}
	}
	return sentences
}

// shortestValue is the length from which a value that a user gave the chart is recognised in a field; a shorter one is in every text.
const shortestValue = 4

// Mend brings drifted objects back to the manifest, by the means that found the drift. The result has, for each object that the
// cluster does not take, an error with its reason.
func (m *Manager) Mend(ctx context.Context, drift []Drift) error {
	var errs []error
	for _, d := range drift {
		if err := m.mend(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.Object, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) mend(ctx context.Context, d Drift) error {
	if d.Missing {
		if d.client == nil { // its kind was gone when the drift was found; a CustomResourceDefinition before it may have brought it back
			resource, err := m.resourceOf(d.want)
			if err != nil {
				return err
			}
			d.client = resource
		}
		made, err := d.client.Create(ctx, d.want, metav1.CreateOptions{FieldManager: object.FieldManager})
		if err != nil {
			return err
		}
		if made.GetKind() == object.CRDKind.Name {
			_, err = object.NewStore(m.client, object.CRDKind).Wait(ctx, object.Key{Name: made.GetName()}, object.Established)
		}
		return err
	}
	if d.Unfit != "" {
		return fmt.Errorf("the API server rejects the release's version of it, and another client may have created it again: delete it, and "+
			"apply again: %s", d.Unfit)
	}
	for have := d.have; ; {
		mended := have.DeepCopy()
		for _, f := range d.Fields {
			f.undo(mended.Object)
		}
		_, err := d.client.Update(ctx, mended, metav1.UpdateOptions{FieldManager: object.FieldManager})
		if !apierrors.IsConflict(err) {
			return err
		}
		if have, err = d.client.Get(ctx, d.want.GetName(), metav1.GetOptions{}); err != nil { // it changed since the comparison
			return err
		}
	}
}

// resourceOf finds the API of an object, with fresh discovery.
func (m *Manager) resourceOf(obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	getter, err := m.client.Getter(m.namespace)
	if err != nil {
		return nil, err
	}
	mapper, err := getter.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	mapping, err := mapper.RESTMapping(obj.GroupVersionKind().GroupKind(), obj.GroupVersionKind().Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return m.client.Dynamic.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
	}
	obj.SetNamespace("")
	return m.client.Dynamic.Resource(mapping.Resource), nil
}

// DriftError lists drift that is there again right after it was mended.
type DriftError struct{ Sentences []string }

func (e *DriftError) Error() string {
	return "differences from the release that others made again at once: " + strings.Join(e.Sentences, "; ")
}

// Repair mends the drift of a release. A remaining difference is an error with its reason: a later apply could not mend it either.
func (m *Manager) Repair(ctx context.Context, r *Release, ignored Ignored) error {
	drift, err := m.Drift(ctx, r, ignored)
	if err != nil || len(drift) == 0 {
		return err
	}
	if err := m.Mend(ctx, drift); err != nil {
		return err
	}
	left, err := m.Drift(ctx, r, ignored)
	if err != nil || len(left) == 0 {
		return err
	}
	return &DriftError{r.Sentences(left)}
}
