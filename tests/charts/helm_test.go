package charts

import (
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
)

// namespace of every release in these tests.
const namespace = "gpufabric-system"

// helm runs Helm's library against one server, as `helm -n gpufabric-system` would.
type helm struct {
	configuration *action.Configuration
}

// newHelm keeps releases in Secrets, as Helm does by default.
func newHelm(t *testing.T, server *rest.Config) *helm {
	t.Helper()
	return newHelmWith(t, server, "secret")
}

// newHelmInMemory keeps releases in this process. The record of a release has every file of the chart, and Helm compresses it at every
// write, which are two for an install and more with hooks.
func newHelmInMemory(t *testing.T, server *rest.Config) *helm {
	t.Helper()
	return newHelmWith(t, server, "memory")
}

func newHelmWith(t *testing.T, server *rest.Config, storage string) *helm {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(true) // reads the server's kinds once, and again when a kind is missing
	insecure, space := true, namespace
	flags.APIServer, flags.BearerToken, flags.Insecure, flags.Namespace = &server.Host, &server.BearerToken, &insecure, &space
	flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
		config.QPS = -1
		return config
	}
	out := &helm{configuration: &action.Configuration{}}
	if err := out.configuration.Init(flags, namespace, storage, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	return out
}

// installChart installs the chart as release gpufabric. The record of the release is not on the server.
func (s *server) installChart(t *testing.T, values map[string]any) {
	t.Helper()
	if _, err := newHelmInMemory(t, s.config).install("gpufabric", load(t, "gpufabric"), values); err != nil {
		t.Fatal(err)
	}
}

func (h *helm) install(name string, loaded *chart.Chart, values map[string]any, options ...func(*action.Install)) (*release.Release,
	error) {
	install := action.NewInstall(h.configuration)
	// The server checks each object, and TestServerStoresChartObjectsUnchanged has it check them strictly. Reading its schemas for each
	// release takes longer than the rest.
	install.DisableOpenAPIValidation = true
	install.ReleaseName, install.Namespace, install.CreateNamespace = name, namespace, true
	for _, option := range options {
		option(install)
	}
	return install.Run(loaded, values)
}

func (h *helm) upgrade(name string, loaded *chart.Chart, values map[string]any) (*release.Release, error) {
	upgrade := action.NewUpgrade(h.configuration)
	upgrade.DisableOpenAPIValidation = true
	upgrade.Namespace = namespace
	return upgrade.Run(name, loaded, values)
}

func (h *helm) rollback(name string, revision int) error {
	rollback := action.NewRollback(h.configuration)
	rollback.Version = revision
	return rollback.Run(name)
}

// uninstall leaves out the hooks. They are Jobs, and no Job controller runs here. TestUninstallRemovesOwnLabelsAndAnnotationsFromNodes
// runs them itself.
func (h *helm) uninstall(name string) error {
	uninstall := action.NewUninstall(h.configuration)
	uninstall.DisableHooks = true
	_, err := uninstall.Run(name)
	return err
}
