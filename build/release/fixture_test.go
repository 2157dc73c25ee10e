package release

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gpufabric.io/build/repository"
)

const version = "0.1.0-rc.1"

var given = flag.String("release", "", "the directory of a release 0.1.0-rc.1 that `make release` made: tests of pages follow them with it")

// shared is what tests make once: a program of one line for each architecture, and keys, because an RSA key takes seconds.
var shared = struct {
	programs map[string][]byte
	keys     string
	release  *Release
	out      string
}{programs: map[string][]byte{}}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(shared.keys)
	_ = os.RemoveAll(shared.out)
	os.Exit(code)
}

func compiled(t *testing.T, architecture string) []byte {
	t.Helper()
	if shared.programs[architecture] != nil {
		return shared.programs[architecture]
	}
	dir := t.TempDir()
	put(t, filepath.Join(dir, "go.mod"), "module gpufabric.io/fixture\n\ngo 1.26.0\n")
	put(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { println(\"fixture\") }\n")
	command := exec.CommandContext(t.Context(), "go", "build", "-o", "p", ".")
	command.Dir = dir
	command.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture, "GOFLAGS="+goFlags)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "p"))
	must(t, err)
	shared.programs[architecture] = content
	return content
}

// readBack is a release that was made before.
func readBack(t *testing.T, dir string) *Release {
	t.Helper()
	if filepath.Base(dir) != version {
		t.Fatalf("-release %s: want the directory of a release %s", dir, version)
	}
	items, err := plan(dir, Registry, nil)
	must(t, err)
	r := &Release{Version: version, Out: dir, digests: map[string]v1.Hash{}}
	for _, one := range items {
		if one.tag == version {
			r.digests[strings.TrimPrefix(one.repository.Name(), Registry+"/")] = one.digest
		}
	}
	return r
}

// released is a release that tests read, and do not change.
func released(t *testing.T) *Release {
	t.Helper()
	if shared.release == nil && *given != "" {
		shared.release = readBack(t, *given)
	}
	if shared.release == nil {
		out, err := os.MkdirTemp("", "release")
		must(t, err)
		shared.out = out
		r := assembled(t, nil)
		must(t, os.CopyFS(out, os.DirFS(r.Out)))
		r.Out = out
		shared.release = r
	}
	return shared.release
}

// assembled makes a release of the checkout's charts and licence, and of programs of one line; edit changes what was built before.
func assembled(t *testing.T, edit func(root string)) *Release {
	t.Helper()
	return assembledAs(t, version, edit)
}

// assembledAs is assembled for another version.
func assembledAs(t *testing.T, version string, edit func(root string)) *Release {
	t.Helper()
	checkout, err := repository.Root()
	must(t, err)
	root := t.TempDir()
	must(t, os.CopyFS(filepath.Join(root, "charts"), os.DirFS(filepath.Join(checkout, "charts"))))
	for _, name := range []string{"LICENSE", "provider/terraform-registry-manifest.json"} {
		content, err := os.ReadFile(filepath.Join(checkout, name))
		must(t, err)
		put(t, filepath.Join(root, name), string(content))
	}
	must(t, SetVersion(root, version))
	for architecture, dir := range map[string]string{"amd64": "", "arm64": "arm64"} {
		p := string(compiled(t, architecture))
		for _, name := range []string{"gpufabric", "gpufabric-node", "gpufabric-scheduler", "nvidia-cdi-hook"} {
			put(t, filepath.Join(root, "bin", dir, name), p)
		}
		put(t, filepath.Join(root, "bin", dir, "nvidia-cdi-hook.LICENSE"), "Apache")
		put(t, filepath.Join(root, "fakes/build", dir, "fakefabric"), p)
		put(t, filepath.Join(root, "fakes/build", dir, "lib/libcuda.so.1"), p)
		put(t, filepath.Join(root, "bin/provider/linux_"+architecture, providerName), p)
	}
	if edit != nil {
		edit(root)
	}
	texts, err := FindTexts(t.Context(), root)
	must(t, err)
	r := &Release{Version: version, Root: root, Out: t.TempDir(), Keys: testKeys(t), Texts: texts,
		Commit:        Commit{Hash: "0123456789012345678901234567890123456789", Time: time.Unix(1764000000, 0).UTC()},
		Architectures: []string{"amd64", "arm64"}, Platforms: []Platform{{"linux", "amd64"}, {"linux", "arm64"}},
		Tools: map[string]string{"go": "x"}}
	must(t, r.Assemble(t.Context(), func(string) {}))
	return r
}

func testKeys(t *testing.T) *Keys {
	t.Helper()
	if shared.keys == "" {
		dir, err := os.MkdirTemp("", "keys")
		must(t, err)
		must(t, WriteKeys(dir, "test", "test@example.com", 2048))
		shared.keys = dir
	}
	keys, err := ReadKeys(shared.keys)
	must(t, err)
	return keys
}

func put(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o755))
}

func get(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gitIn runs git in a repository of a test.
func gitIn(ctx context.Context, t *testing.T, dir string, arguments ...string) string {
	t.Helper()
	arguments = append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com"}, arguments...)
	command := exec.CommandContext(ctx, "git", arguments...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", arguments, err, out)
	}
	return string(bytes.TrimSpace(out))
}
