package registry

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	gcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

func TestPushStoresAtPathsOfContainerd(t *testing.T) {
	server := httptest.NewServer(gcr.New(gcr.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	r := Registry{Container: "registry", Address: strings.TrimPrefix(server.URL, "http://")}
	tests := map[string]struct{ reference, manifest string }{
		"a library image of Docker Hub": {"ubuntu:22.04", "/v2/library/ubuntu/manifests/22.04"},
		"an untagged name":              {"nvidia/cuda", "/v2/nvidia/cuda/manifests/latest"},
		"a name with a host":            {"ghcr.io/gpufabric/gpufabric:0.1.0", "/v2/gpufabric/gpufabric/manifests/0.1.0"},
		"a host with a port":            {"registry.example:8443/team/app:v1", "/v2/team/app/manifests/v1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			image, err := random.Image(64, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Push(t.Context(), test.reference, image); err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+test.manifest, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("GET %s: %s", test.manifest, answer.Status)
			}
		})
	}
}

func TestRegistryNamesABadReference(t *testing.T) {
	err := Registry{Address: "127.0.0.1:1"}.Push(t.Context(), "Not A Name", nil)
	if err == nil || !strings.Contains(err.Error(), "Not A Name") {
		t.Errorf("error %v, want one that names the reference", err)
	}
}

func TestHostsFileSendsContainerdToTheRegistryByName(t *testing.T) {
	got := Registry{Container: "gpufabric-registry", Address: "127.0.0.1:49153"}.HostsFile()
	want := "[host.\"http://gpufabric-registry:5000\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
