// Package release installs a chart into a simulated cluster with Helm's own library, so that what runs there is what ships.
package release

import (
	"context"
	"fmt"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
)

// Options say what to install.
type Options struct {
	// Kubeconfig is the administrator's.
	Kubeconfig string
	// Chart is the chart's directory.
	Chart string
	// ValuesFiles are merged in order, Values over them.
	ValuesFiles     []string
	Values          map[string]any
	Name, Namespace string
}

// Install installs the chart, whose namespace it makes, and returns when every object is accepted; it does not wait for pods.
func Install(ctx context.Context, options Options) error {
	configuration, err := configure(options)
	if err != nil {
		return err
	}
	chart, err := loader.Load(options.Chart)
	if err != nil {
		return fmt.Errorf("load the chart %s: %w", options.Chart, err)
	}
	values := options.Values
	for i := len(options.ValuesFiles) - 1; i >= 0; i-- {
		under, err := chartutil.ReadValuesFile(options.ValuesFiles[i])
		if err != nil {
			return fmt.Errorf("read the values %s: %w", options.ValuesFiles[i], err)
		}
		values = chartutil.CoalesceTables(values, under)
	}
	install := action.NewInstall(configuration)
	install.ReleaseName, install.Namespace, install.CreateNamespace = options.Name, options.Namespace, true
	if _, err := install.RunWithContext(ctx, chart, values); err != nil {
		return fmt.Errorf("install the chart %s: %w", options.Chart, err)
	}
	return nil
}

// Uninstall removes the release.
func Uninstall(options Options) error {
	configuration, err := configure(options)
	if err != nil {
		return err
	}
	if _, err := action.NewUninstall(configuration).Run(options.Name); err != nil {
		return fmt.Errorf("uninstall %s: %w", options.Name, err)
	}
	return nil
}

func configure(options Options) (*action.Configuration, error) {
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig, flags.Namespace = &options.Kubeconfig, &options.Namespace
	flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
		config.QPS = -1
		return config
	}
	configuration := new(action.Configuration)
	if err := configuration.Init(flags, options.Namespace, "secret", func(string, ...any) {}); err != nil {
		return nil, fmt.Errorf("make Helm's client: %w", err)
	}
	return configuration, nil
}
