package release

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/registry"
)

// registryOf serves an archive as the chart stack:1.0.0 of a registry, and as /stack.tgz of a web server. It returns its host and the
// digests of the manifest and of the archive, in hexadecimal.
func registryOf(t *testing.T, archive []byte) (host, manifest, sum string) {
	t.Helper()
	blobs := map[string][]byte{}
	store := func(media string, content []byte) map[string]any {
		digest := sha256.Sum256(content)
		name := "sha256:" + hex.EncodeToString(digest[:])
		blobs[name] = content
		return map[string]any{"mediaType": media, "digest": name, "size": len(content)}
	}
	layer := store(registry.ChartLayerMediaType, archive)
	config := store(registry.ConfigMediaType, []byte(`{"name":"stack","version":"1.0.0","apiVersion":"v2"}`))
	const media = "application/vnd.oci.image.manifest.v1+json"
	text, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": media, "config": config, "layers": []any{layer}})
	if err != nil {
		t.Fatal(err)
	}
	digest := store(media, text)["digest"].(string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		content, found := blobs[name]
		switch {
		case r.URL.Path == "/stack.tgz":
			content = archive
		case strings.HasSuffix(r.URL.Path, "/manifests/1.0.0"), strings.HasSuffix(r.URL.Path, "/manifests/"+digest):
			content = text
			w.Header().Set("Content-Type", media)
			w.Header().Set("Docker-Content-Digest", digest)
		case !found:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content) // a client that left sees nothing
	}))
	t.Cleanup(server.Close)
	whole := sha256.Sum256(archive)
	return server.Listener.Addr().String(), digest, hex.EncodeToString(whole[:])
}

func TestLoadReadsChartOfRegistryAndWebServer(t *testing.T) {
	local, err := loader.Load(testChart)
	if err != nil {
		t.Fatal(err)
	}
	path, err := chartutil.Save(local, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Load(t.Context(), testChart)
	if err != nil {
		t.Fatal(err)
	}
	host, manifest, sum := registryOf(t, archive)
	other := strings.Repeat("0", 64)
	for _, c := range []struct{ name, from, wrong string }{
		{"a tag", "oci://" + host + "/charts/stack:1.0.0", ""},
		{"a tag and its digest", "oci://" + host + "/charts/stack:1.0.0@" + manifest, ""},
		{"a digest", "oci://" + host + "/charts/stack@" + manifest, ""},
		{"a tag that was moved", "oci://" + host + "/charts/stack:1.0.0@sha256:" + other, "its manifest is " + manifest},
		{"a tag that is not there", "oci://" + host + "/charts/stack:2.0.0", "helm registry login " + host},
		{"an archive", "http://" + host + "/stack.tgz", ""},
		{"an archive and its digest", "http://" + host + "/stack.tgz#sha256=" + sum, ""},
		{"an archive of another digest", "http://" + host + "/stack.tgz#sha256=" + other, "its SHA-256 is " + sum},
		{"a fragment that is no digest", "http://" + host + "/stack.tgz#v1", "write #sha256=HEX"},
		{"an archive that is not there", "http://" + host + "/none.tgz", "404 Not Found"},
		{"a web server without TLS", "http://charts.example/stack.tgz", "unencrypted"},
		{"an address with a password", "https://me:secret@charts.example/stack.tgz", "names a user"},
		{"an address without a host", "oci:///stack", "is not an address of a chart"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Load(t.Context(), c.from)
			switch {
			case c.wrong == "" && err != nil:
				t.Error(err)
			case c.wrong == "" && got.Digest != want.Digest:
				t.Errorf("digest %s, want %s", got.Digest, want.Digest)
			case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "secret")):
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}
