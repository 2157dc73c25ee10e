package release

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
)

// server is a registry that records the manifests that are put, and refuses a request where fails says so.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	puts  []string // paths of manifests, in their order
	blobs int      // that were uploaded
	fails func(*http.Request) bool
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	storage := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		refused := s.fails != nil && s.fails(r)
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && !refused {
			s.puts = append(s.puts, r.URL.Path)
		}
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/") && !refused {
			s.blobs++
		}
		s.mu.Unlock()
		if refused {
			http.Error(w, `{"errors":[{"code":"DENIED","message":"the disk is full"}]}`, http.StatusForbidden)
			return
		}
		storage.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// path is where a release is pushed to.
func (s *server) path() string { return strings.TrimPrefix(s.URL, "http://") + "/gpufabric" }

func (s *server) tags() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tags []string
	for _, path := range s.puts {
		if !strings.Contains(path, "/manifests/sha256:") {
			tags = append(tags, path)
		}
	}
	return tags
}

func quiet(string) {}

func TestPushSetsTagsAfterAllContentAndChartsLast(t *testing.T) {
	r, s := released(t), newServer(t)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	first := slices.IndexFunc(s.puts, func(path string) bool { return !strings.Contains(path, "/manifests/sha256:") })
	for _, path := range s.puts[first:] {
		if strings.Contains(path, "/manifests/sha256:") {
			t.Errorf("%s was put after the first tag", path)
		}
	}
	tags := s.tags()
	for i, want := range []string{"charts/", "charts/", "/manifests/" + version, "/manifests/" + version, "/manifests/" + version} {
		if got := tags[len(tags)-1-i]; !strings.Contains(got, want) {
			t.Errorf("tag %d from the end is %s, want one of %s", i, got, want)
		}
	}
	for name, digest := range r.digests {
		got, err := crane.Digest(s.path()+"/"+name+":"+version, crane.Insecure)
		if err != nil || got != digest.String() {
			t.Errorf("%s is %s (%v), want %s", name, got, err, digest)
		}
	}
	before := len(s.puts)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	if again := len(s.tags()) + before; len(s.tags()) != len(tags) {
		t.Errorf("a second push set tags again: %d", again)
	}
}

func TestPushDoesNotSetTheTagWhenTheRegistryFailsAndContinuesLater(t *testing.T) {
	r, s := released(t), newServer(t)
	uploads := 0
	s.fails = func(request *http.Request) bool {
		if request.Method == http.MethodPut && strings.Contains(request.URL.Path, "/blobs/") {
			uploads++
		}
		return uploads > 12 && request.Method == http.MethodPut
	}
	err := Push(t.Context(), r.Out, s.path(), quiet)
	if err == nil || !strings.Contains(err.Error(), "no tag was set") || !strings.Contains(err.Error(), "the disk is full") {
		t.Fatalf("error %v, want one that says why and that no tag was set", err)
	}
	if tags := s.tags(); len(tags) > 0 {
		t.Fatalf("tags %v are set", tags)
	}
	done := s.blobs
	s.fails = nil
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	whole := newServer(t)
	must(t, Push(t.Context(), r.Out, whole.path(), quiet))
	if s.blobs >= done+whole.blobs {
		t.Errorf("%d blobs, then %d more; a whole push has %d: what was there was uploaded again", done, s.blobs-done, whole.blobs)
	}
	if diff := len(whole.tags()) - len(s.tags()); diff != 0 {
		t.Errorf("%d tags are missing", diff)
	}
}

func TestPushNamesTagsThatAreNotSetYet(t *testing.T) {
	r, s := released(t), newServer(t)
	s.fails = func(request *http.Request) bool {
		return request.Method == http.MethodPut && strings.HasSuffix(request.URL.Path, "/charts/gpufabric/manifests/"+version)
	}
	err := Push(t.Context(), r.Out, s.path(), quiet)
	if err == nil || !strings.Contains(err.Error(), "tags are not set yet: run it again") {
		t.Errorf("error %v", err)
	}
	s.fails = nil
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
}

func TestPushDoesNotMoveATag(t *testing.T) {
	r, s := released(t), newServer(t)
	other := assembled(t, func(root string) {
		put(t, filepath.Join(root, "bin/gpufabric"), string(compiled(t, "amd64"))+"x")
	})
	must(t, Push(t.Context(), other.Out, s.path(), quiet))
	before := len(s.puts)
	err := Push(t.Context(), r.Out, s.path(), quiet)
	if err == nil || !strings.Contains(err.Error(), "a published version is not replaced") {
		t.Errorf("error %v", err)
	}
	if len(s.puts) != before {
		t.Error("something was put before the refusal")
	}
}

func TestPushRefusesInvalidReleaseAndInvalidRegistry(t *testing.T) {
	r := released(t)
	for _, test := range []struct{ dir, registry, want string }{
		{t.TempDir(), "localhost:1/gpufabric", "such as dist/0.1.0"},
		{filepath.Join(t.TempDir(), "0.1.0"), "localhost:1/gpufabric", "`make release` makes"},
		{r.Out, "not a registry", "such as ghcr.io/gpufabric"},
		{r.Out, "https://ghcr.io/gpufabric", "such as ghcr.io/gpufabric"},
	} {
		if err := Push(t.Context(), test.dir, test.registry, quiet); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s to %s: error %v, want one with %q", test.dir, test.registry, err, test.want)
		}
	}
}

// The registry here checks digests, as the specification of OCI registries demands. Layers that another registry has already are not read.
func TestPushDoesNotSetTheTagWhenContentHasAnotherDigest(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"a changed byte": func(content []byte) []byte { content[len(content)/2] ^= 1; return content },
		"a cut file":     func(content []byte) []byte { return content[:len(content)/2] },
	} {
		for kind, pick := range map[string]func(size int64, largest int64) bool{
			"layer":    func(size, largest int64) bool { return size == largest },
			"manifest": func(size, largest int64) bool { return size < largest },
		} {
			dir, s := t.TempDir(), newServer(t)
			must(t, os.CopyFS(dir, os.DirFS(released(t).Out)))
			blobs, err := filepath.Glob(filepath.Join(dir, "oci/gpufabric/blobs/sha256/*"))
			must(t, err)
			largest := int64(0)
			sizes := map[string]int64{}
			for _, path := range blobs {
				sizes[path] = int64(len(get(t, path)))
				largest = max(largest, sizes[path])
			}
			for _, path := range blobs {
				if pick(sizes[path], largest) {
					must(t, os.WriteFile(path, damage(get(t, path)), 0o600))
					break
				}
			}
			if err := Push(t.Context(), dir, s.path(), quiet); err == nil {
				t.Errorf("%s of a %s: no error", name, kind)
			}
			if tags := s.tags(); len(tags) > 0 {
				t.Errorf("%s of a %s: tags %v are set", name, kind, tags)
			}
		}
	}
}
