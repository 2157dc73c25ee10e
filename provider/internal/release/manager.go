package release

import (
	"context"
	"errors"
	"fmt"
	"time"

	"helm.sh/helm/v3/pkg/action"
	helm "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
)

// Release is a release as Helm has it stored in the cluster.
type Release struct {
	Name, Namespace string
	Revision        int
	Status          string // Helm's status: deployed, failed, pending-install, ...
	Description     string
	ChartName       string
	ChartVersion    string
	AppVersion      string
	ChartDigest     string
	Values          map[string]any // the user's values, without the chart's defaults
	Manifest        string

	stored *helm.Release
}

// Spec is the wanted state of a release.
type Spec struct {
	Name, Namespace string
	CreateNamespace bool
	Chart           *Chart
	Values          map[string]any
	Secret          []string // names of the values, as Flatten writes them, that must not be shown
	Owner           string   // of the state, which Helm's record of the release bears as a label
	Creation        string   // mark of a creation that no state has yet; empty: none
	Ignored         Ignored  // differences from the manifest that are accepted
}

// Manager acts on the releases of one namespace.
type Manager struct {
	client    *cluster.Client
	namespace string
}

// NewManager returns the manager of a namespace's releases.
func NewManager(client *cluster.Client, namespace string) *Manager {
	return &Manager{client: client, namespace: namespace}
}

// Labels of Helm's record of a release.
const (
	ownLabel      = "gpufabric.io/managed-by"         // this provider made it
	ownerLabel    = "gpufabric.io/terraform-owner"    // the state that holds it
	secretLabel   = "gpufabric.io/secret-values"      // some of its values must not be shown; it stays, since Helm keeps earlier labels
	creationLabel = "gpufabric.io/terraform-creation" // its creation is under way, so that no state holds it yet; an object.Origin's mark
)

func (s Spec) labels() map[string]string {
	labels := map[string]string{ownLabel: "terraform", ownerLabel: s.Owner, creationLabel: s.Creation}
	if len(s.Secret) > 0 {
		labels[secretLabel] = "true"
	}
	for key, value := range labels {
		if value == "" {
			delete(labels, key)
		}
	}
	return labels
}

// Record identifies a release in the private data of a state.
type Record struct {
	Owner string    `json:"owner,omitempty"`
	First time.Time `json:"first"` // when the release was first installed
	// Unmarked is whether the release was imported without an owner, and not changed since, so that it does not have Owner yet.
	Unmarked bool `json:"unmarked,omitempty"`
	// Scheduled has on how many nodes each DaemonSet's pods were to run when the release was last rolled out.
	Scheduled map[string]int32 `json:"scheduled,omitempty"`
}

// HasSecrets reports whether some values of the release, or of one before it, must not be shown.
func (r *Release) HasSecrets() bool { return r.stored.Labels[secretLabel] != "" }

// Record returns the record of a release as it is labelled.
func (r *Release) Record() Record {
	return Record{Owner: r.stored.Labels[ownerLabel], First: r.stored.Info.FirstDeployed.Time}
}

// Import returns the record of a release that a state imports, with an owner that the state's first change writes as a label. A release
// with the label of a state is a *HeldError: that state would go on to change and remove it.
func (r *Release) Import() (Record, error) {
	now := r.Record()
	if now.Owner != "" && now.Owner != object.Released {
		return Record{}, &HeldError{r, now.Owner}
	}
	return Record{Owner: object.NewOwner(), First: now.First, Unmarked: true}, nil
}

// Follow returns the record of a release that the record holds, as it was read or written: it may have the label by now.
func (r Record) Follow(release *Release) Record {
	now := release.Record()
	if now.Owner == "" || now.Owner == object.Released {
		now.Owner, now.Unmarked = r.Owner, r.Unmarked
	}
	now.Scheduled = r.Scheduled
	return now
}

// Holds reports whether a release is the record's; the zero record is everybody's. A release whose label was released belongs to no state
// but one that imported it then, and has not changed it yet.
func (r Record) Holds(release *Release) bool {
	now := release.Record()
	same := r.First.Equal(now.First)
	switch {
	case r.Owner == "" && r.First.IsZero():
		return true
	case now.Owner == object.Released:
		return r.Unmarked && same
	case r.Owner != "" && now.Owner != "":
		return r.Owner == now.Owner
	}
	return same
}

// secretName returns the name of the Secret that is Helm's record of the revision.
func (r *Release) secretName() string {
	return fmt.Sprintf("sh.helm.release.v1.%s.v%d", r.Name, r.Revision)
}

// HeldError means that a release to be imported has the label of a state.
type HeldError struct {
	Release *Release
	Owner   string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("release %s in namespace %s belongs to a Terraform state: the label %s of Secret %s is %q", e.Release.Name,
		e.Release.Namespace, ownerLabel, e.Release.secretName(), e.Owner)
}

// Command returns the command that releases the label.
func (e *HeldError) Command() string {
	return fmt.Sprintf("kubectl label --overwrite secret %s --namespace %s %s=%s", e.Release.secretName(), e.Release.Namespace, ownerLabel,
		object.Released)
}

// config makes a fresh Helm configuration: Helm caches discovery and capabilities in it, which must not outlive one operation.
func (m *Manager) config(ctx context.Context) (*action.Configuration, error) {
	getter, err := m.client.Getter(m.namespace)
	if err != nil {
		return nil, err
	}
	config := &action.Configuration{}
	log := func(format string, args ...any) { tflog.Debug(ctx, "helm: "+fmt.Sprintf(format, args...)) }
	if err := config.Init(getter, m.namespace, "secret", log); err != nil {
		return nil, err
	}
	return config, nil
}

// Get returns the newest revision of a release, or nil when there is none.
func (m *Manager) Get(ctx context.Context, name string) (*Release, error) {
	config, err := m.config(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := config.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return fromHelm(stored), nil
}

// OfChart lists the newest revisions of the releases of a chart; a manager of no namespace lists those of all.
func (m *Manager) OfChart(ctx context.Context, chart string) ([]*Release, error) {
	config, err := m.config(ctx)
	if err != nil {
		return nil, err
	}
	lister := action.NewList(config)
	lister.All, lister.AllNamespaces = true, m.namespace == ""
	lister.SetStateMask()
	stored, err := lister.Run()
	if err != nil {
		return nil, err
	}
	var list []*Release
	for _, r := range stored {
		if r.Chart != nil && r.Chart.Metadata != nil && r.Chart.Metadata.Name == chart {
			list = append(list, fromHelm(r))
		}
	}
	return list, nil
}

func fromHelm(r *helm.Release) *Release {
	out := &Release{Name: r.Name, Namespace: r.Namespace, Revision: r.Version, Manifest: r.Manifest, Values: r.Config, stored: r}
	if r.Info != nil {
		out.Status, out.Description = r.Info.Status.String(), r.Info.Description
	}
	if r.Chart != nil && r.Chart.Metadata != nil {
		out.ChartName, out.ChartVersion, out.AppVersion = r.Chart.Metadata.Name, r.Chart.Metadata.Version, r.Chart.Metadata.AppVersion
		out.ChartDigest = digest(r.Chart)
	}
	if out.Values == nil {
		out.Values = map[string]any{}
	}
	return out
}

// ExistsError means that a release of this name exists and works, and is not in Terraform's state.
type ExistsError struct{ Release *Release }

func (e *ExistsError) Error() string {
	r := e.Release
	return fmt.Sprintf(
		"release %s in namespace %s exists already: chart %s, revision %d, %s",
		r.Name,
		r.Namespace,
		r.ChartVersion,
		r.Revision,
		r.Status,
	)
}

// ReplacedError means that the release of a name is no longer the one that a state recorded.
type ReplacedError struct{ Release *Release }

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("release %s in namespace %s is not the one in the state: somebody else installed it or took it over",
		e.Release.Name, e.Release.Namespace)
}

// BusyError means that another Helm client seems to be at work on the release.
type BusyError struct {
	Release *Release
	Since   time.Time
}

func (e *BusyError) Error() string {
	return fmt.Sprintf(
		"release %s in namespace %s is %s since %s, by another Helm client",
		e.Release.Name,
		e.Release.Namespace,
		e.Release.Status,
		e.Since.Format(time.RFC3339),
	)
}

// Install installs a release that does not exist. It first recovers from an interrupted or failed install. A failed install is
// undone: it leaves no release, no CRD and no namespace that it added. hooks bounds each chart hook. abandoned reports whether a mark of
// a creation was left by a process that has ended.
func (m *Manager) Install(ctx context.Context, spec Spec, abandoned func(mark string) bool, hooks time.Duration) (*Release, error) {
	if _, err := m.Get(ctx, spec.Name); err != nil { // nothing is made for a user who may not read releases
		return nil, err
	}
	undo := &undo{}
	if err := m.ensureNamespace(ctx, spec, undo); err != nil {
		return nil, err
	}
	held, unlock, err := m.lock(ctx, spec.Name)
	if err != nil {
		return nil, m.undone(ctx, err, undo)
	}
	defer unlock()
	last, err := m.Get(held, spec.Name)
	if err != nil {
		return nil, m.undone(held, err, undo)
	}
	if last != nil {
		proceed, err := m.recover(held, last, abandoned)
		if err != nil {
			return nil, err
		}
		if proceed == upgradeIt {
			return m.upgrade(held, spec, last, hooks)
		}
	}
	return m.installOrUndo(held, spec, undo, hooks)
}

func (m *Manager) installOrUndo(ctx context.Context, spec Spec, undo *undo, hooks time.Duration) (*Release, error) {
	installed, err := m.install(ctx, spec, hooks, undo)
	if err != nil {
		return nil, m.undone(ctx, err, undo)
	}
	return installed, nil
}

// undone undoes the steps before an error, unless the lock was lost: another run works with it then.
func (m *Manager) undone(ctx context.Context, err error, undo *undo) error {
	if lost := lockLost(ctx, err); errors.Is(lost, errLockLost) {
		return lost
	}
	// The caller's context may have ended; undoing must still run, within its own time.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return errors.Join(err, undo.run(cleanup))
}

func (m *Manager) install(ctx context.Context, spec Spec, hooks time.Duration, undo *undo) (*Release, error) {
	if err := m.applyCRDs(ctx, spec, undo); err != nil {
		return nil, err
	}
	config, err := m.config(ctx)
	if err != nil {
		return nil, err
	}
	install := action.NewInstall(config)
	install.ReleaseName, install.Namespace = spec.Name, spec.Namespace
	install.SkipCRDs = true // applied above, by server-side apply, so that upgrades change them too
	install.Timeout = hooks
	install.Labels = spec.labels()
	undo.add("release "+spec.Name, func(ctx context.Context) error { return m.takeBack(ctx, spec.Name) })
	tflog.Info(
		ctx,
		"installing the release",
		map[string]any{"release": spec.Name, "namespace": spec.Namespace, "chart": spec.Chart.Path, "version": spec.Chart.Version},
	)
	stored, err := install.RunWithContext(ctx, spec.Chart.chart, deepCopy(spec.Values))
	if err != nil {
		return nil, fmt.Errorf("install chart %s %s: %w", spec.Chart.Path, spec.Chart.Version, err)
	}
	return fromHelm(stored), nil
}

// Upgrade brings a release that a state records to spec in place, and mends what its objects differ from the manifest; CRDs are upgraded
// too. A release that is as wanted, objects and all, is left alone and gets no new revision. A pending or failed revision is recovered
// first, and a missing one installed. Errors: *ReplacedError for another release of the name, *DriftError, *LockedError, or others'.
func (m *Manager) Upgrade(ctx context.Context, spec Spec, record Record, abandoned func(mark string) bool, hooks time.Duration) (
	upgraded *Release, err error) {
	last, err := m.Get(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	if last == nil {
		return m.Install(ctx, spec, abandoned, hooks)
	}
	ctx, unlock, err := m.lock(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer func() { err = lockLost(ctx, err) }()
	if last, err = m.Get(ctx, spec.Name); err != nil { // it may have changed before the lock was taken
		return nil, err
	}
	if last != nil && !record.Holds(last) {
		return nil, &ReplacedError{last}
	}
	if last == nil || !last.Matches(spec) {
		return m.upgrade(ctx, spec, last, hooks)
	}
	if err := m.own(ctx, last, spec.Owner); err != nil {
		return nil, err
	}
	return last, m.Repair(ctx, last, spec.Ignored)
}

func (m *Manager) upgrade(ctx context.Context, spec Spec, last *Release, hooks time.Duration) (*Release, error) {
	proceed := installIt
	if last != nil {
		var err error
		if proceed, err = m.recoverForUpgrade(ctx, last); err != nil {
			return nil, err
		}
	}
	if proceed == installIt {
		undo := &undo{}
		if err := m.ensureNamespace(ctx, spec, undo); err != nil {
			return nil, err
		}
		return m.installOrUndo(ctx, spec, undo, hooks)
	}
	if err := m.applyCRDs(ctx, spec, &undo{}); err != nil {
		return nil, err
	}
	config, err := m.config(ctx)
	if err != nil {
		return nil, err
	}
	upgrade := action.NewUpgrade(config)
	upgrade.Namespace = spec.Namespace
	upgrade.ResetValues = true // the configuration is the whole truth; nothing is carried over from earlier revisions
	upgrade.SkipCRDs = true
	upgrade.Timeout = hooks
	upgrade.MaxHistory = keptRevisions
	upgrade.Labels = spec.labels()
	tflog.Info(
		ctx,
		"upgrading the release",
		map[string]any{"release": spec.Name, "namespace": spec.Namespace, "chart": spec.Chart.Path, "version": spec.Chart.Version},
	)
	stored, err := upgrade.RunWithContext(ctx, spec.Name, spec.Chart.chart, deepCopy(spec.Values))
	if err != nil {
		return nil, fmt.Errorf("upgrade release %s to chart %s %s: %w", spec.Name, spec.Chart.Path, spec.Chart.Version, err)
	}
	upgraded := fromHelm(stored)
	return upgraded, m.Repair(ctx, upgraded, spec.Ignored) // Helm leaves what others added to lists
}

// Settled removes the mark of a creation from Helm's record of a release: from here on a state holds it.
func (m *Manager) Settled(ctx context.Context, r *Release) error {
	if r.stored.Labels[creationLabel] == "" {
		return nil
	}
	return m.label(ctx, r, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, creationLabel))
}

// own labels Helm's record of a release with the state's owner, where it was imported without.
func (m *Manager) own(ctx context.Context, r *Release, owner string) error {
	if r.stored.Labels[ownerLabel] == owner {
		return nil
	}
	if err := m.label(ctx, r, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, ownerLabel, owner)); err != nil {
		return fmt.Errorf("label release %s as this state's: %w", r.Name, err)
	}
	if r.stored.Labels == nil {
		r.stored.Labels = map[string]string{}
	}
	r.stored.Labels[ownerLabel] = owner
	return nil
}

// label changes the labels of Helm's record of a release; a record that is gone has none.
func (m *Manager) label(ctx context.Context, r *Release, patch []byte) error {
	_, err := m.client.Typed.CoreV1().Secrets(m.namespace).Patch(ctx, r.secretName(), types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: object.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// keptRevisions bounds Helm's history; each revision is a Secret that holds the whole chart.
const keptRevisions = 10

// undoTimeout limits the removal of the objects of a failed install.
const undoTimeout = 2 * time.Minute

// undo collects how to undo each step of an install that may fail later.
type undo struct {
	names []string
	steps []func(context.Context) error
}

func (u *undo) add(name string, step func(context.Context) error) {
	u.names, u.steps = append(u.names, name), append(u.steps, step)
}

func (u *undo) run(ctx context.Context) error {
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i](ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", u.names[i], err))
		}
	}
	return errors.Join(errs...)
}
