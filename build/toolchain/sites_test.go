package toolchain

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// site plays the projects' release sites as a mirror does. The sites themselves have not been reached from the machines where this was
// written.
type site struct {
	*httptest.Server
	files map[string][]byte // by path: /HOST/PATH

	mu    sync.Mutex
	asked []string
	serve map[string]http.HandlerFunc // instead of a file
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{files: map[string][]byte{}, serve: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.URL.Path)
		s.mu.Unlock()
		if handler := s.serve[r.URL.Path]; handler != nil {
			handler(w, r)
			return
		}
		content, ok := s.files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(s.Close)
	return s
}

// offer publishes content as the tool's file, with its checksum beside it in the form that the project uses.
func (s *site) offer(tool Tool, content []byte) {
	sum := sumOf(content)
	file := tool.fill(tool.release.file, runtime.GOARCH)
	switch tool.Name {
	case "etcd", "terraform", "tofu": // a file for all
		sum = strings.Repeat("0", 64) + "  other.zip\n" + sum + "  " + file + "\n"
	case "kind", "helm":
		sum += "  " + file + "\n"
	}
	s.files[mirrored(tool.fileURL(runtime.GOARCH))] = content
	s.files[mirrored(tool.sumsURL(runtime.GOARCH))] = []byte(sum)
}

func mirrored(address string) string { return "/" + strings.TrimPrefix(address, "https://") }

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// saying is a program that prints a version.
func saying(version string) []byte { return []byte("#!/bin/sh\necho 'version " + version + "'\n") }

func tarred(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	plain := gzip.NewWriter(&packed)
	archive := tar.NewWriter(plain)
	must(t, archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "README.md", Size: 2, Mode: 0o644}))
	_, err := archive.Write([]byte("hi"))
	must(t, err)
	must(t, archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o755}))
	_, err = archive.Write(content)
	must(t, err)
	must(t, archive.Close())
	must(t, plain.Close())
	return packed.Bytes()
}

func zipped(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	entry, err := archive.Create(name)
	must(t, err)
	_, err = entry.Write(content)
	must(t, err)
	must(t, archive.Close())
	return packed.Bytes()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func lookup(t *testing.T, name string) Tool {
	t.Helper()
	tool, err := Lookup(name)
	must(t, err)
	return tool
}

// fetching is a toolchain without a PATH that fetches from the mirror; a program that it builds reports that.
func fetching(t *testing.T, mirror string, locked lock) (*Toolchain, *bytes.Buffer) {
	t.Helper()
	t.Setenv("PATH", "/usr/bin:/bin:"+t.TempDir()) // for the scripts that play programs
	for _, name := range []string{"kind", "helm", "terraform"} {
		for _, dir := range []string{"/usr/bin", "/bin"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				t.Skipf("%s/%s would be taken before anything is fetched", dir, name)
			}
		}
	}
	c, log := newToolchain(t, func(_ context.Context, _ Tool, path string) error {
		return os.WriteFile(path, []byte("built"), 0o755)
	})
	var err error
	c.sites, err = newSites(mirror, locked)
	must(t, err)
	c.sites.least = 1 // these files are small
	return c, log
}

func ensured(t *testing.T, c *Toolchain, name string) string {
	t.Helper()
	paths, err := c.Ensure(t.Context(), name)
	must(t, err)
	content, err := os.ReadFile(paths[name])
	must(t, err)
	return string(content)
}

func TestSitesFetchAPublishedFile(t *testing.T) {
	kind, helm, terraform := saying("0.33.0"), saying("3.21.4"), saying("1.16.0")
	s := newSite(t)
	s.offer(lookup(t, "kind"), kind)
	s.offer(lookup(t, "helm"), tarred(t, "linux-"+runtime.GOARCH+"/helm", helm))
	s.offer(lookup(t, "terraform"), zipped(t, "terraform", terraform))
	c, log := fetching(t, s.URL+"/", nil)
	for name, want := range map[string][]byte{"kind": kind, "helm": helm, "terraform": terraform} {
		if got := ensured(t, c, name); got != string(want) {
			t.Errorf("%s holds %q, want %q\n%s", name, got, want, log)
		}
	}
	if want := "helm " + Helm + ": fetching 0.0 MB from " + hostOf(s.URL) + " ... 0 s\n"; !strings.Contains(log.String(), want) {
		t.Errorf("progress lacks %q:\n%s", want, log)
	}
	requests := len(s.asked)
	ensured(t, c, "kind")
	if len(s.asked) != requests {
		t.Errorf("a tool in the cache is asked for again: %q", s.asked[requests:])
	}
}

func TestSitesFallBackToABuildWithAReason(t *testing.T) {
	right := saying("0.33.0")
	file, sums := mirrored(lookup(t, "kind").fileURL(runtime.GOARCH)), mirrored(lookup(t, "kind").sumsURL(runtime.GOARCH))
	release := make(chan struct{})
	defer close(release)
	for name, test := range map[string]struct {
		spoil func(s *site, c *Toolchain)
		why   string
	}{
		"wrong hash": {func(s *site, _ *Toolchain) { s.files[file] = append([]byte("#"), right...) },
			"the file is refused"},
		"cut file": {func(s *site, _ *Toolchain) {
			s.serve[file] = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(len(right)))
				_, _ = w.Write(right[:10])
			}
		}, fmt.Sprintf("was cut off after 10 of %d bytes", len(right))},
		"slow": {func(s *site, c *Toolchain) {
			c.sites.window = 2 * time.Second // the bytes before the window's end come in time on a busy machine too
			s.serve[file] = func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write(right[:10])
				w.(http.Flusher).Flush()
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}
		}, "bytes came in 2s"},
		"slow checksum": {func(s *site, c *Toolchain) {
			c.sites.window = 2 * time.Second // the bytes before the window's end come in time on a busy machine too
			s.serve[sums] = func(_ http.ResponseWriter, r *http.Request) {
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}
		}, "did not come in 2s"},
		"absent file":     {func(s *site, _ *Toolchain) { delete(s.files, file) }, "404 Not Found"},
		"absent checksum": {func(s *site, _ *Toolchain) { delete(s.files, sums) }, "404 Not Found"},
		"no checksum":     {func(s *site, _ *Toolchain) { s.files[sums] = []byte("<html>log in</html>") }, "has no SHA-256 of kind-linux-"},
		"other version": {func(s *site, _ *Toolchain) { s.offer(lookup(t, "kind"), saying("0.30.0")) },
			"is 0.30.0, and " + Kind + " is wanted"},
		"not a program": {func(s *site, _ *Toolchain) { s.offer(lookup(t, "kind"), []byte("<html>log in</html>")) },
			"does not report its version"},
		"broken connection": {func(s *site, _ *Toolchain) {
			s.serve[sums] = func(w http.ResponseWriter, _ *http.Request) {
				connection, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					_ = connection.Close()
				}
			}
		}, "cannot be reached (EOF)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.offer(lookup(t, "kind"), right)
			c, log := fetching(t, s.URL, nil)
			test.spoil(s, c)
			if got := ensured(t, c, "kind"); got != "built" {
				t.Errorf("the tool holds %q, want a build", got)
			}
			said := log.String()
			if !strings.Contains(said, test.why) || !strings.Contains(said, ReleasesVariable+"=off does not try") ||
				!strings.Contains(said, "building (") {
				t.Errorf("progress lacks %q, the switch or the build:\n%s", test.why, said)
			}
			left, err := filepath.Glob(filepath.Join(c.Cache, "kind", "*", "*"))
			must(t, err)
			for _, path := range left {
				if base := filepath.Base(path); base != "kind" && base != ".lock" {
					t.Errorf("%s is left", base)
				}
			}
		})
	}
}

func TestSitesRejectAnArchiveWithoutTheTool(t *testing.T) {
	for name, content := range map[string][]byte{
		"helm":      tarred(t, "linux-"+runtime.GOARCH+"/../../helm", saying("3.21.4")),
		"terraform": zipped(t, "bin/terraform", saying("1.16.0")),
	} {
		s := newSite(t)
		s.offer(lookup(t, name), content)
		c, log := fetching(t, s.URL, nil)
		if got := ensured(t, c, name); got != "built" || !strings.Contains(log.String(), "the archive holds no ") {
			t.Errorf("%s holds %q:\n%s", name, got, log)
		}
	}
}

// A machine without an internet loses a moment at most: one connection a host, for any number of requests.
func TestSitesTryAnUnreachableHostOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())
	c, log := fetching(t, "http://"+address, nil)
	began := time.Now()
	for _, name := range []string{"kind", "helm", "terraform"} {
		if got := ensured(t, c, name); got != "built" {
			t.Errorf("%s holds %q, want a build", name, got)
		}
	}
	t.Logf("measured: three tools of a host that cannot be reached: %s", time.Since(began))
	if got := strings.Count(log.String(), address+" cannot be reached"); got != 3 || len(c.sites.unreachable) != 1 {
		t.Errorf("the host is named %d times and %d are remembered:\n%s", got, len(c.sites.unreachable), log)
	}
}

func TestLockTakesPrecedence(t *testing.T) {
	right, other := saying("0.33.0"), saying("0.33.0 of somebody else")
	address := lookup(t, "kind").fileURL(runtime.GOARCH)
	for name, test := range map[string]struct {
		locked    lock
		published []byte
		fetched   bool
		why       string
	}{
		"the file of the lock":                {lock{address: sumOf(right)}, right, true, ""},
		"another file published with its sum": {lock{address: sumOf(right)}, other, false, "the file is refused"},
		"a file that the lock lacks":          {lock{}, right, false, "releases.lock has no line for " + address},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.offer(lookup(t, "kind"), test.published)
			c, log := fetching(t, s.URL, test.locked)
			if got := ensured(t, c, "kind"); (got != "built") != test.fetched || !strings.Contains(log.String(), test.why) {
				t.Errorf("the tool holds %q:\n%s", got, log)
			}
			if sums := mirrored(lookup(t, "kind").sumsURL(runtime.GOARCH)); len(s.asked) > 0 && s.asked[0] == sums {
				t.Errorf("the checksum beside the file is asked although there is a lock")
			}
		})
	}
}

func TestLockIsWrittenAndReadAgain(t *testing.T) {
	s := newSite(t)
	files := 0
	for _, name := range Names() {
		tool := lookup(t, name)
		if !tool.published() {
			continue
		}
		for _, arch := range architectures {
			files++
			sums := mirrored(tool.sumsURL(arch))
			s.files[sums] = fmt.Appendf(s.files[sums], "%s  %s\n", sumOf([]byte(name+arch)), tool.fill(tool.release.file, arch))
		}
	}
	sites, err := newSites(s.URL, nil)
	must(t, err)
	locked := lock{"kindest/node:" + Kubernetes: sumOf([]byte("image"))}
	must(t, sites.addChecksums(t.Context(), &bytes.Buffer{}, locked))
	file := filepath.Join(t.TempDir(), LockName)
	must(t, locked.write(file))
	read, err := readLock(file)
	must(t, err)
	if len(read) != files+1 || read[lookup(t, "kubectl").fileURL("arm64")] != sumOf([]byte("kubectlarm64")) {
		t.Errorf("the lock has %d lines of %d: %v", len(read), files+1, read)
	}
	delete(s.files, mirrored(lookup(t, "tofu").sumsURL("amd64")))
	if err := sites.addChecksums(t.Context(), &bytes.Buffer{}, lock{}); err == nil || !strings.Contains(err.Error(), "tofu for amd64: ") {
		t.Errorf("error %v, want one that names tofu for amd64", err)
	}
}

func TestLockNamesTheLineOfAMistake(t *testing.T) {
	file := filepath.Join(t.TempDir(), LockName)
	must(t, os.WriteFile(file, []byte("# comment\n"+sumOf(nil)+"  https://a/b\nabc  https://a/c\n"), 0o644))
	if _, err := readLock(file); err == nil || !strings.Contains(err.Error(), `line 3 is "abc  https://a/c"`) {
		t.Errorf("error %v, want one that names line 3", err)
	}
	if locked, err := readLock(file + ".absent"); locked != nil || err != nil {
		t.Errorf("without a file: %v, %v", locked, err)
	}
}

func TestSettingIsAMirrorOrOff(t *testing.T) {
	if s, err := newSites("off", nil); s != nil || err != nil {
		t.Errorf("off gives %v, %v", s, err)
	}
	if s, err := newSites("", nil); err != nil || s.place("https://get.helm.sh/x") != "https://get.helm.sh/x" {
		t.Errorf("unset does not read the sites themselves: %v", err)
	}
	if s, err := newSites("https://mirror.example/r/", nil); err != nil ||
		s.place("https://get.helm.sh/x") != "https://mirror.example/r/get.helm.sh/x" {
		t.Errorf("a mirror is not asked: %v", err)
	}
	for _, wrong := range []string{"on", "mirror.example", "file:///srv"} {
		if _, err := newSites(wrong, nil); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q gives %v, want a refusal that names it", wrong, err)
		}
	}
}

func TestChecksumsAreReadInTheFormsThatProjectsUse(t *testing.T) {
	sum := sumOf([]byte("x"))
	for name, test := range map[string]struct{ text, want string }{
		"alone":            {sum, sum},
		"alone, a line":    {strings.ToUpper(sum) + "\n", sum},
		"with the name":    {sum + "  tool.zip\n", sum},
		"binary mode":      {sum + " *tool.zip\n", sum},
		"with a path":      {sum + "  ./dist/tool.zip\n", sum},
		"of another file":  {sum + "  tool.zip.sig\n", ""},
		"among others":     {sumOf(nil) + "  a\n" + sum + "  tool.zip\n", sum},
		"too short":        {sum[:40] + "  tool.zip\n", ""},
		"two without name": {sum + "\n" + sum + "\n", ""},
		"empty":            {"", ""},
	} {
		if got := findChecksum(test.text, "tool.zip"); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
