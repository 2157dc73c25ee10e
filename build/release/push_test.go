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
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
)

// server is a registry that records the manifests that are put, refuses a request where fails returns true, and forgets the manifest that
// it has accepted where drops does.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	puts  []string // paths of manifests, in their order
	blobs int      // that were uploaded
	fails func(*http.Request) bool
	drops func(*http.Request) bool
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
		dropped := s.drops != nil && r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && s.drops(r)
		s.mu.Unlock()
		if dropped {
			w.WriteHeader(http.StatusCreated)
			return
		}
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

// answers is a registry that answers every request with a status, and counts them.
func answers(t *testing.T, status int) (path string, requests *atomic.Int64) {
	t.Helper()
	requests = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		requests.Add(1)
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://") + "/gpufabric", requests
}

func TestPushEndsAtTheFirstRefusalWithItsRemedy(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusUnauthorized:    "docker login",
		http.StatusForbidden:       "docker login",
		http.StatusTooManyRequests: "run it again",
		http.StatusNotImplemented:  "run it again",
	} {
		path, requests := answers(t, status)
		err := Push(t.Context(), released(t).Out, path, quiet)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "nothing was pushed") {
			t.Errorf("%d: error %v, want one with %q that reports that nothing was pushed", status, err, want)
		}
		if n := requests.Load(); n != 1 {
			t.Errorf("%d: %d requests, want one: the others get the same answer", status, n)
		}
	}
}

func TestPushSetsNoTagWhenTheRegistryStoresNothing(t *testing.T) {
	r, s := released(t), newServer(t)
	s.drops = func(*http.Request) bool { return true }
	err := Push(t.Context(), r.Out, s.path(), quiet)
	if err == nil || !strings.Contains(err.Error(), "no tag was set") || !strings.Contains(err.Error(), "does not have it") {
		t.Errorf("error %v", err)
	}
	if tags := s.tags(); len(tags) > 0 {
		t.Errorf("tags %v are set", tags)
	}
}

func TestPushReportsATagThatTheRegistryDoesNotStore(t *testing.T) {
	r, s := released(t), newServer(t)
	s.drops = func(request *http.Request) bool { return strings.HasSuffix(request.URL.Path, "/manifests/"+version) }
	err := Push(t.Context(), r.Out, s.path(), quiet)
	if err == nil || !strings.Contains(err.Error(), "does not have it") || !strings.Contains(err.Error(), "tags are not set yet") {
		t.Errorf("error %v", err)
	}
	s.drops = nil
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
}

func TestPushFollowsRedirects(t *testing.T) {
	r, s := released(t), newServer(t)
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, s.URL+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(moved.Close)
	must(t, Push(t.Context(), r.Out, strings.TrimPrefix(moved.URL, "http://")+"/gpufabric", quiet))
	for name, digest := range r.digests {
		if got, err := crane.Digest(s.path()+"/"+name+":"+version, crane.Insecure); err != nil || got != digest.String() {
			t.Errorf("%s is %s (%v), want %s", name, got, err, digest)
		}
	}
}

func TestPushEndsWhenTheRegistryDoesNotAnswer(t *testing.T) {
	released(t)
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			<-ended
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(ended) })
	err := push(t.Context(), released(t).Out, strings.TrimPrefix(s.URL, "http://")+"/gpufabric", quiet, 50*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "timeout awaiting response headers") ||
		!strings.Contains(err.Error(), "nothing was pushed") {
		t.Errorf("error %v", err)
	}
}

func TestPushPutsNothingWhenAnyContentHasAnotherDigest(t *testing.T) {
	dir, s := filepath.Join(t.TempDir(), version), newServer(t)
	must(t, os.CopyFS(dir, os.DirFS(released(t).Out)))
	blobs := slices.Concat(matches(t, dir, "oci/*/blobs/sha256/*"), matches(t, dir, "oci/charts/*/blobs/sha256/*"))
	if len(blobs) < 20 {
		t.Fatalf("the release has %d blobs", len(blobs))
	}
	for _, path := range blobs {
		content := get(t, path)
		changed := slices.Clone(content)
		changed[len(changed)/2] ^= 1
		for name, damaged := range map[string][]byte{"changed byte": changed, "cut file": content[:len(content)/2]} {
			must(t, os.WriteFile(path, damaged, 0o600))
			if err := Push(t.Context(), dir, s.path(), quiet); err == nil || !strings.Contains(err.Error(), filepath.Base(path)) {
				t.Errorf("%s of %s: error %v, want one that names the file", name, path, err)
			}
		}
		must(t, os.WriteFile(path, content, 0o600))
	}
	if len(s.puts) > 0 || s.blobs > 0 {
		t.Errorf("%d blobs and the manifests %v were put", s.blobs, s.puts)
	}
}

func matches(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	must(t, err)
	return found
}
