package charts

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"gpufabric.io/build/toolchain"
)

// The examples of NVIDIA's DRA driver in earlier versions of resource.k8s.io, as its module has them, on a server that serves v1beta1 and
// v1beta2 beside v1, under this chart's classes and policies. No webhook runs here: package validation has tests of the configurations.
func TestServerTakesExamplesInOlderVersionsOfTheAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	module, err := toolchain.ModuleDirectory(t.Context(), "gpu-kubelet-plugin")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(module, "demo/specs/quickstart/v1beta1/*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d examples (%v)", len(files), err)
	}
	quickstart, err := filepath.Glob(filepath.Join(module, "demo/specs/quickstart/gpu-test*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	live := startServer(t, olderWays()...)
	live.installChart(t, map[string]any{"gpus": on(), "webhook": off()})
	taken := 0
	for _, file := range append(files, quickstart...) {
		for _, object := range documents(t, file) {
			if object.GroupVersionKind().Group != "resource.k8s.io" {
				continue
			}
			mapping, err := live.mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
			if object.GroupVersionKind().Version == "v1alpha3" {
				if !meta.IsNoMatchError(err) {
					t.Errorf("%s: v1alpha3 is served (%v): docs/reports/nvidia-examples.md has it refused", filepath.Base(file), err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			object.SetNamespace("default")
			made, err := live.client.Resource(mapping.Resource).Namespace("default").Create(t.Context(), object,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
			if err != nil {
				t.Errorf("%s, %s %s: %v", filepath.Base(file), object.GetKind(), object.GetName(), err)
				continue
			}
			if taken++; made.GetName() != object.GetName() {
				t.Errorf("%s: made %s of %s", filepath.Base(file), made.GetName(), object.GetName())
			}
		}
	}
	if taken < 10 {
		t.Errorf("%d claims and templates were tried", taken)
	}
}

// documents are the objects of a YAML file.
func documents(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil && !strings.Contains(err.Error(), "EOF") {
			t.Fatalf("%s: %v", path, err)
		}
		if len(object.Object) > 0 {
			out = append(out, object)
		}
	}
}
