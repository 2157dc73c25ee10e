package charts

import (
	"context"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

var (
	crdResource        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	daemonSetResource  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	domainResource     = schema.GroupVersionResource{Group: "resource.nvidia.com", Version: "v1beta1", Resource: "computedomains"}
	computeDomainsName = "computedomains.resource.nvidia.com"
)

// next is the chart's next version: another program, and a CRD with one more short name, by which it is recognised.
func next(t *testing.T) *chart.Chart {
	t.Helper()
	loaded := load(t, "gpufabric")
	loaded.Metadata.Version, loaded.Metadata.AppVersion = "0.2.0", "0.2.0"
	for _, file := range loaded.Files {
		if strings.HasSuffix(file.Name, "_computedomains.yaml") {
			changed := strings.Replace(string(file.Data), "    - cd\n", "    - cd\n    - nextcd\n", 1)
			if changed == string(file.Data) {
				t.Fatal("the CRD of ComputeDomains has no short name cd any more: choose another difference")
			}
			file.Data = []byte(changed)
		}
	}
	return loaded
}

// revision shows which version of the chart the server has.
type revision struct {
	image      string
	shortNames string
}

func (s *server) revision(t *testing.T) revision {
	t.Helper()
	plugin, err := s.client.Resource(daemonSetResource).Namespace(namespace).Get(t.Context(), "gpufabric-compute-domain-plugin",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	containers, _, err := unstructured.NestedSlice(plugin.Object, "spec", "template", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	definition, err := s.client.Resource(crdResource).Get(t.Context(), computeDomainsName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names, _, err := unstructured.NestedStringSlice(definition.Object, "spec", "names", "shortNames")
	if err != nil {
		t.Fatal(err)
	}
	return revision{image: containers[0].(map[string]any)["image"].(string), shortNames: strings.Join(names, ",")}
}

// addDomain makes a ComputeDomain, as a user would.
func (s *server) addDomain(t *testing.T, name string) {
	t.Helper()
	domain := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec":     map[string]any{"numNodes": int64(1), "channel": map[string]any{"resourceClaimTemplate": map[string]any{"name": "channel"}}},
	}}
	if _, err := s.client.Resource(domainResource).Namespace("default").Create(t.Context(), domain, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *server) hasDomain(t *testing.T, name string) bool {
	t.Helper()
	_, err := s.client.Resource(domainResource).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestChartChangesProgramAndCRDsOnUpgradeAndRollback(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	tool := newHelm(t, live.config)
	if _, err := tool.install("gpufabric", load(t, "gpufabric"), nil); err != nil {
		t.Fatal(err)
	}
	first := live.revision(t)
	live.addDomain(t, "made-by-the-first")

	if _, err := tool.upgrade("gpufabric", next(t), nil); err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	if got, want := live.revision(t), (revision{"ghcr.io/gpufabric/gpufabric:0.2.0", "cd,nextcd"}); got != want {
		t.Errorf("after the upgrade: %+v, want %+v", got, want)
	}
	if !live.hasDomain(t, "made-by-the-first") {
		t.Error("the upgrade lost a ComputeDomain")
	}

	if err := tool.rollback("gpufabric", 1); err != nil {
		t.Fatalf("rollback: %v", err)
	}
	if got := live.revision(t); got != first {
		t.Errorf("after the rollback: %+v, want %+v", got, first)
	}
	if !live.hasDomain(t, "made-by-the-first") {
		t.Error("the rollback lost a ComputeDomain")
	}

	// An upgrade that fails half-way can be repeated.
	broken := next(t)
	for _, template := range broken.Templates {
		if strings.HasSuffix(template.Name, "/compute-domain-plugin.yaml") {
			template.Data = []byte(strings.ReplaceAll(string(template.Data), `"role" "compute-domain-plugin"`, `"role" "Not A Name"`))
		}
	}
	if _, err := tool.upgrade("gpufabric", broken, nil); err == nil {
		t.Fatal("the server took a DaemonSet with a name that is none")
	}
	if _, err := tool.upgrade("gpufabric", next(t), nil); err != nil {
		t.Fatalf("upgrade after one that failed: %v", err)
	}
}

func TestInstallAdoptsObjectsKeptByUninstall(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	tool := newHelm(t, live.config)
	if _, err := tool.install("gpufabric", load(t, "gpufabric"), nil); err != nil {
		t.Fatal(err)
	}
	live.addDomain(t, "kept")
	if err := tool.uninstall("gpufabric"); err != nil {
		t.Fatal(err)
	}
	if !live.hasDomain(t, "kept") {
		t.Fatal("crds.keep is true, and uninstall removed a ComputeDomain")
	}

	t.Run("by a release of the same name", func(t *testing.T) {
		if _, err := tool.install("gpufabric", next(t), nil); err != nil {
			t.Fatalf("install over kept CRDs: %v", err)
		}
		if got := live.revision(t).shortNames; got != "cd,nextcd" {
			t.Errorf("the kept CRD was not upgraded: short names %s", got)
		}
		if err := tool.uninstall("gpufabric"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("by a release of another name that is told to", func(t *testing.T) {
		_, err := tool.install("fabric", load(t, "gpufabric"), nil)
		if err == nil || !strings.Contains(err.Error(), "invalid ownership metadata") {
			t.Fatalf("another release took the CRDs without being told: %v", err)
		}
		take := func(install *action.Install) { install.TakeOwnership, install.Replace = true, true }
		if _, err := tool.install("fabric", load(t, "gpufabric"), nil, take); err != nil {
			t.Fatalf("install with --take-ownership: %v", err)
		}
		if !live.hasDomain(t, "kept") {
			t.Error("taking the CRDs over removed a ComputeDomain")
		}
		if err := tool.uninstall("fabric"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("or removed, when the last release says so", func(t *testing.T) {
		take := func(install *action.Install) { install.TakeOwnership = true }
		if _, err := tool.install("last", load(t, "gpufabric"), map[string]any{"crds": map[string]any{"keep": false}}, take); err != nil {
			t.Fatal(err)
		}
		if err := tool.uninstall("last"); err != nil {
			t.Fatal(err)
		}
		live.awaitNoCRD(t) // the server removes its objects first
		if left := live.ours(t); len(left) != 0 {
			t.Errorf("uninstall left %v", left)
		}
	})
}

// awaitNoCRD returns when the chart's CRDs are gone.
func (s *server) awaitNoCRD(t *testing.T) {
	t.Helper()
	// The server removes a CRD's objects first. After a failure it doubles its pause before the next try.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var left []unstructured.Unstructured
	for {
		labelled := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=gpufabric"}
		list, err := s.client.Resource(crdResource).List(ctx, labelled)
		if err != nil {
			t.Fatalf("await the end of the CRDs: %v; of those that were left at the last look the status was %v", err, statuses(left))
		}
		if left = list.Items; len(left) == 0 {
			return
		}
		labelled.ResourceVersion = list.GetResourceVersion()
		changes, err := s.client.Resource(crdResource).Watch(ctx, labelled)
		if err != nil {
			t.Fatalf("await the end of the CRDs: %v", err)
		}
		for change := range changes.ResultChan() {
			if change.Type == watch.Deleted {
				break
			}
		}
		changes.Stop()
	}
}

// statuses returns the objects' statuses by name.
func statuses(objects []unstructured.Unstructured) map[string]any {
	all := map[string]any{}
	for _, object := range objects {
		all[object.GetName()] = object.Object["status"]
	}
	return all
}

// ours lists the objects with the chart's label, of every kind that the chart makes.
func (s *server) ours(t *testing.T) []string {
	t.Helper()
	kinds := map[schema.GroupVersionKind]bool{}
	for _, rendering := range renderings(t) {
		for _, object := range rendering.objects {
			if object.GetAPIVersion() != "monitoring.coreos.com/v1" {
				kinds[object.GroupVersionKind()] = true
			}
		}
	}
	var out []string
	for kind := range kinds {
		mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.client.Resource(mapping.Resource).List(t.Context(),
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=gpufabric"})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			out = append(out, item.GetKind()+" "+item.GetName())
		}
	}
	return out
}

func TestInstallTakesOverForeignCRDOnlyOnRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	tool := newHelm(t, live.config)
	foreign := crdObject(t)
	foreign.SetLabels(nil)
	foreign.SetAnnotations(nil)
	if _, err := live.client.Resource(crdResource).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := tool.install("gpufabric", load(t, "gpufabric"), nil)
	if err == nil || !strings.Contains(err.Error(), "another owner already serves") || !strings.Contains(err.Error(), computeDomainsName) {
		t.Fatalf("a foreign CRD: %v", err)
	}
	take := func(install *action.Install) { install.TakeOwnership = true }
	if _, err := tool.install("gpufabric", load(t, "gpufabric"), map[string]any{"takeOver": true}, take); err != nil {
		t.Fatalf("install with takeOver and --take-ownership: %v", err)
	}
	if got := live.revision(t).shortNames; got != "cd" {
		t.Errorf("the foreign CRD was not replaced: short names %s", got)
	}
}

// crdObject is the CRD of ComputeDomains as the chart renders it.
func crdObject(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	for _, object := range renderValues(t, "gpufabric", nil) {
		if object.GetName() == computeDomainsName {
			return &object.Unstructured
		}
	}
	t.Fatalf("the chart renders no %s", computeDomainsName)
	return nil
}
