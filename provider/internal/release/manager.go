package release

import (
	"context"
	"errors"
	"fmt"
	"time"

	"helm.sh/helm/v3/pkg/action"
	helm "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/cluster"
)

// Release is a release as Helm has it stored in the cluster.
type Release struct {
	Name, Namespace string
	Revision        int
	Status          string // Helm's status: deployed, failed, pending-install, ...
	Description     string
	ChartVersion    string
	AppVersion      string
	ChartDigest     string
	Values          map[string]any // what the user gave, without the chart's defaults
	Manifest        string

	stored *helm.Release
}

// Spec is what a release should be.
type Spec struct {
	Name, Namespace string
	CreateNamespace bool
	Chart           *Chart
	Values          map[string]any
	Secret          []string // names of the values, as Flatten writes them, that must not be shown
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

// ownLabel marks releases (on Helm's stored record) that this provider made: only those are recovered automatically.
const ownLabel = "gpufabric.io/managed-by"

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
		out.ChartVersion, out.AppVersion = r.Chart.Metadata.Version, r.Chart.Metadata.AppVersion
		out.ChartDigest = digest(r.Chart)
	}
	if out.Values == nil {
		out.Values = map[string]any{}
	}
	return out
}

// ExistsError says that a release of this name exists and works, and is not in Terraform's state.
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

// BusyError says that another Helm client seems to be at work on the release.
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

// Install installs a release that does not exist. It first recovers what an interrupted or failed install left. A failed install is
// undone: it leaves no release, no CRD and no namespace that it added. hooks bounds each chart hook.
func (m *Manager) Install(ctx context.Context, spec Spec, hooks time.Duration) (*Release, error) {
	last, err := m.Get(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	if last != nil {
		proceed, err := m.recover(ctx, last)
		if err != nil {
			return nil, err
		}
		if proceed == upgradeIt {
			return m.Upgrade(ctx, spec, hooks)
		}
	}
	undo := &undo{}
	installed, err := m.install(ctx, spec, hooks, undo)
	if err != nil {
		// The caller's context may have ended; undoing must still run, within its own time.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return nil, errors.Join(err, undo.run(cleanup))
	}
	return installed, nil
}

func (m *Manager) install(ctx context.Context, spec Spec, hooks time.Duration, undo *undo) (*Release, error) {
	if err := m.ensureNamespace(ctx, spec, undo); err != nil {
		return nil, err
	}
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
	install.Labels = map[string]string{ownLabel: "terraform"}
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

// Upgrade brings an existing release to spec in place; CRDs are upgraded too. A pending or failed revision is recovered first.
func (m *Manager) Upgrade(ctx context.Context, spec Spec, hooks time.Duration) (*Release, error) {
	last, err := m.Get(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	if last == nil {
		return m.Install(ctx, spec, hooks)
	}
	proceed, err := m.recoverForUpgrade(ctx, last)
	if err != nil {
		return nil, err
	}
	if proceed == installIt {
		return m.Install(ctx, spec, hooks)
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
	upgrade.Labels = map[string]string{ownLabel: "terraform"}
	tflog.Info(
		ctx,
		"upgrading the release",
		map[string]any{"release": spec.Name, "namespace": spec.Namespace, "chart": spec.Chart.Path, "version": spec.Chart.Version},
	)
	stored, err := upgrade.RunWithContext(ctx, spec.Name, spec.Chart.chart, deepCopy(spec.Values))
	if err != nil {
		return nil, fmt.Errorf("upgrade release %s to chart %s %s: %w", spec.Name, spec.Chart.Path, spec.Chart.Version, err)
	}
	return fromHelm(stored), nil
}

// keptRevisions bounds Helm's history; each revision is a Secret that holds the whole chart.
const keptRevisions = 10

// undoTimeout bounds the removal of what a failed install left.
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
			errs = append(errs, fmt.Errorf("take back %s: %w", u.names[i], err))
		}
	}
	return errors.Join(errs...)
}
