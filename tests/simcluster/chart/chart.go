// Package chart installs a chart into a simulated cluster: rendered by Helm's own engine, so that what runs there is what
// ships, and applied as it is. The Terraform provider's tests use Helm's installer itself. It is not used here, because it
// links Go's plugin loader. With that the linker binds every symbol at the program's start, and go-nvml needs lazy binding.
package chart

import (
	"context"
	"fmt"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/tests/simcluster/manifests"
)

// Options define what to install.
type Options struct {
	// Chart is the chart's directory.
	Chart           string
	Values          map[string]any
	Name, Namespace string
}

// Install applies the chart in the namespace, which it makes, and returns when every object is accepted; it does not wait for
// pods.
func Install(ctx context.Context, config *rest.Config, options Options) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("install %s: %w", options.Chart, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: options.Namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("install %s: make namespace %s: %w", options.Chart, options.Namespace, err)
	}
	objects, err := Render(config, options)
	if err != nil {
		return err
	}
	apply, err := manifests.NewClient(config)
	if err != nil {
		return err
	}
	return apply.Apply(ctx, options.Namespace, objects...)
}

// Render renders the chart for the cluster as it is, in the order in which Helm would install its objects.
func Render(config *rest.Config, options Options) ([]*unstructured.Unstructured, error) {
	chart, err := loader.Load(options.Chart)
	if err != nil {
		return nil, fmt.Errorf("load the chart %s: %w", options.Chart, err)
	}
	capabilities, err := capabilitiesOf(config)
	if err != nil {
		return nil, err
	}
	merged, err := chartutil.ToRenderValues(chart, options.Values, chartutil.ReleaseOptions{
		Name: options.Name, Namespace: options.Namespace, Revision: 1, IsInstall: true,
	}, capabilities)
	if err != nil {
		return nil, fmt.Errorf("values of the chart %s: %w", options.Chart, err)
	}
	files, err := engine.RenderWithClient(chart, merged, config)
	if err != nil {
		return nil, fmt.Errorf("render the chart %s: %w", options.Chart, err)
	}
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	_, sorted, err := releaseutil.SortManifests(files, capabilities.APIVersions, releaseutil.InstallOrder)
	if err != nil {
		return nil, fmt.Errorf("order the objects of the chart %s: %w", options.Chart, err)
	}
	var objects []*unstructured.Unstructured
	for _, manifest := range sorted {
		parsed, err := manifests.Parse([]byte(manifest.Content))
		if err != nil {
			return nil, fmt.Errorf("chart %s, %s: %w", options.Chart, manifest.Name, err)
		}
		objects = append(objects, parsed...)
	}
	return objects, nil
}

func capabilitiesOf(config *rest.Config) (*chartutil.Capabilities, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read the API versions of the cluster: %w", err)
	}
	version, err := client.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("ask the cluster for its version: %w", err)
	}
	groups, err := client.ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("read the API versions of the cluster: %w", err)
	}
	var served chartutil.VersionSet
	for _, group := range groups.Groups {
		for _, v := range group.Versions {
			served = append(served, v.GroupVersion)
		}
	}
	return &chartutil.Capabilities{
		KubeVersion: chartutil.KubeVersion{Version: version.GitVersion, Major: version.Major, Minor: version.Minor},
		APIVersions: served, HelmVersion: chartutil.DefaultCapabilities.HelmVersion,
	}, nil
}
