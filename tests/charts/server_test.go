package charts

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"gpufabric.io/build/apiserver"
)

// server gives tests the objects of a running API server by their kinds.
type server struct {
	config *rest.Config
	client dynamic.Interface
	mapper meta.RESTMapper
}

// olderWays are the flags of a server with the older versions of resource.k8s.io, and on which the policies alone decide about the status
// of claims.
func olderWays() []string {
	flags := []string{"--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"}
	if path := os.Getenv("TEST_ASSET_KUBE_APISERVER"); path != "" {
		said, err := exec.Command(path, "--version").Output()
		if minor := regexp.MustCompile(`v1\.(\d+)`).FindSubmatch(said); err == nil && minor != nil && string(minor[1]) < "36" {
			return flags // it knows no such gate, and no such check of its own
		}
	}
	return append(flags, "--feature-gates=DRAResourceClaimGranularStatusAuthorization=false")
}

// startServer returns an API server with these flags, and with no object but its own. A server starts once for each set of flags: where an
// earlier test has used it, what that test left is removed.
func startServer(t *testing.T, flags ...string) *server {
	t.Helper()
	s, fresh, err := shared.server(t.Context(), flags)
	if err != nil {
		t.Fatal(err)
	}
	live := serverAs(t, &rest.Config{Host: s.URL, BearerToken: apiserver.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.CA}})
	if fresh {
		s.own = live.everyKey(t)
	} else {
		live.clear(t, s.own)
	}
	live.plantCanary(t)
	return live
}

func serverAs(t *testing.T, config *rest.Config) *server {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	finder, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &server{config: config, client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(finder))}
}

// resource finds where an object's kind is served.
func (s *server) resource(t *testing.T, object Object) dynamic.ResourceInterface {
	t.Helper()
	kind := object.GroupVersionKind()
	mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatalf("%s: the server does not serve %s: %v", object.Template, kind, err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return s.client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	return s.client.Resource(mapping.Resource)
}

// Servers that emulate an earlier version have its feature gates: they drop fields, and refuse an expression that names one.
func TestServerStoresChartObjectsUnchanged(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	for name, flags := range map[string][]string{"1.36": nil, "1.35": {apiserver.Emulating("1.35")}, "1.34": {apiserver.Emulating("1.34")}} {
		t.Run(name, func(t *testing.T) {
			live := startServer(t, flags...)
			if len(flags) > 0 {
				t.Cleanup(func() { shared.end(flags) }) // no other test has use for it
			}
			space := Object{}
			space.SetUnstructuredContent(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}})
			if _, err := live.resource(t, space).Create(t.Context(), &space.Unstructured, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			tried := map[string]bool{} // many objects are the same in several renderings
			for _, rendering := range renderings(t) {
				for _, object := range rendering.objects {
					if object.GetAPIVersion() == "monitoring.coreos.com/v1" {
						continue // the Prometheus operator's CRD is not here; TestChartObjectsDecodeStrictly names it
					}
					if tried[object.YAML] {
						continue
					}
					tried[object.YAML] = true
					// Strict: a field that the API does not know is an error and not a warning.
					strict := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
					if _, err := live.resource(t, object).Create(t.Context(), &object.Unstructured, strict); err != nil {
						t.Errorf("%s: %s: %v\n%s", rendering.name, object.Template, err, object.YAML)
					}
				}
			}
		})
	}
}
