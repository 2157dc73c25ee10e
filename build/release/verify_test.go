package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/v1/empty"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/short"
	"gpufabric.io/build/toolchain"
)

// commands are the lines of the block of docs/release.md that this file runs.
func commands(t *testing.T) []string {
	t.Helper()
	root, err := repository.Root()
	must(t, err)
	page := get(t, filepath.Join(root, "docs/release.md"))
	block := regexp.MustCompile("(?s)```sh run-by=build/release/verify_test.go\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/release.md has no block that this file runs")
	}
	lines := strings.Split(strings.TrimSpace(string(block[1])), "\n")
	for i, want := range []string{"openssl dgst ", "sha256sum --check ", "cosign verify "} {
		if len(lines) != 3 || !strings.HasPrefix(lines[i], want) {
			t.Fatalf("docs/release.md verifies by %q, want three commands, the %d. %s", lines, i+1, want)
		}
	}
	return lines
}

// verify runs a command of the page in a release's directory, against a registry of the test.
func verify(t *testing.T, dir, registry, command string) (string, error) {
	t.Helper()
	path := os.Getenv("PATH")
	if strings.HasPrefix(command, "cosign ") {
		path = filepath.Dir(cosign(t)) + ":" + path
		command = strings.NewReplacer(Registry, registry, ":0.1.0", ":"+version).Replace(command)
	}
	run := exec.CommandContext(t.Context(), "sh", "-c", command)
	run.Dir = dir
	run.Env = append(os.Environ(), "PATH="+path, "HOME="+t.TempDir()) // no login and no trust root of the user count
	out, err := run.CombinedOutput()
	return string(out), err
}

// cosign is the program of that name: its first build takes many minutes.
func cosign(t *testing.T) string {
	t.Helper()
	short.Skip(t, "make test-release without SHORT=1")
	tools, err := toolchain.Ensure(t.Context(), "cosign")
	must(t, err)
	return tools["cosign"]
}

// verifyByPage pushes a release to a registry of the test, and runs the page's commands.
func verifyByPage(t *testing.T, dir string) {
	t.Helper()
	s := newServer(t)
	must(t, Push(t.Context(), dir, s.path(), quiet))
	for _, command := range commands(t) {
		t.Run(strings.Fields(command)[0], func(t *testing.T) {
			if out, err := verify(t, dir, s.path(), command); err != nil {
				t.Errorf("%s: %v\n%s", command, err, out)
			}
		})
	}
}

func TestReleasePageCommandsVerifyARelease(t *testing.T) {
	verifyByPage(t, released(t).Out)
}

func TestReleasePageCommandsRejectAReleaseWhenItWasChanged(t *testing.T) {
	for i, change := range []func(r *Release){
		func(r *Release) { put(t, filepath.Join(r.Out, "SHA256SUMS"), "0000  krew/gpufabric.yaml\n") },
		func(r *Release) { put(t, filepath.Join(r.Out, "krew/gpufabric.yaml"), "other") },
	} {
		r := released(t)
		changed := &Release{Out: t.TempDir()}
		must(t, os.CopyFS(changed.Out, os.DirFS(r.Out)))
		change(changed)
		if out, err := verify(t, changed.Out, "", commands(t)[i]); err == nil {
			t.Errorf("%s finds nothing wrong: %s", commands(t)[i], out)
		}
	}
}

// cosignFlags are those of the page's command.
const cosignFlags = " --insecure-ignore-tlog=true --new-bundle-format=false "

func TestCosignShowsRecordsAndOriginOfEveryManifest(t *testing.T) {
	cosign(t)
	r, s := released(t), newServer(t)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	if command := commands(t)[2]; !strings.Contains(command, cosignFlags) {
		t.Errorf("docs/release.md verifies by %q, without%s", command, cosignFlags)
	}
	for _, name := range sortedKeys(r.digests) {
		for kind, predicate := range map[string]string{"spdxjson": spdxPredicate, "slsaprovenance1": slsaPredicate} {
			command := "cosign verify-attestation --type " + kind + " --key signing.pub" + cosignFlags + Registry + "/" + name + ":0.1.0"
			if out, err := verify(t, r.Out, s.path(), command); err != nil {
				t.Errorf("%s, which is of %s: %v\n%s", command, predicate, err, out)
			}
		}
		command := "cosign verify --key signing.pub" + cosignFlags + Registry + "/" + name + ":0.1.0"
		if out, err := verify(t, r.Out, s.path(), command); err != nil || !strings.Contains(out, r.digests[name].String()) {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}

func TestCosignRejectsAnotherKeyAndAnImageWithoutSignature(t *testing.T) {
	cosign(t)
	r, s := released(t), newServer(t)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	other := t.TempDir()
	must(t, WriteKeys(other, "other", "other@example.com", 2048))
	keys, err := ReadKeys(other)
	must(t, err)
	key, err := keys.Public()
	must(t, err)
	put(t, filepath.Join(other, "signing.pub"), string(key))
	command := commands(t)[2]
	if out, err := verify(t, other, s.path(), command); err == nil {
		t.Errorf("%s by another key finds nothing wrong: %s", command, out)
	}
	must(t, crane.Push(empty.Image, s.path()+"/unsigned:1", crane.Insecure))
	command = strings.Replace(command, Registry+"/gpufabric:0.1.0", s.path()+"/unsigned:1", 1)
	if out, err := verify(t, r.Out, s.path(), command); err == nil || !strings.Contains(out, "no signatures found") {
		t.Errorf("%s: error %v\n%s", command, err, out)
	}
}
