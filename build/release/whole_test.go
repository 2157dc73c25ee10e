//go:build whole

package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
)

// It is what `make provider-repository` writes.
func TestProviderRepositoryBuildsAndPassesItsTests(t *testing.T) {
	root, err := repository.Root()
	must(t, err)
	dir := filepath.Join(t.TempDir(), providerName)
	must(t, ProviderRepository(t.Context(), root, dir))
	program := filepath.Join(t.TempDir(), providerName)
	for _, arguments := range [][]string{{"build", "-o", program, "."}, {"test", "-short", "-vet=off", "./..."}} {
		command := exec.CommandContext(t.Context(), "go", arguments...)
		command.Dir = dir
		command.Env = environment("CGO_ENABLED=1")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", arguments, err, out)
		}
	}
}

// It makes the release of HEAD twice: in two clones on two paths, one with a strict umask and another time zone. They share nothing but
// the cache of what Go compiled. Then it verifies and installs one by the pages' commands.
func TestWholeReleaseIsTheSameOnAnotherPath(t *testing.T) {
	root, err := repository.Root()
	must(t, err)
	testKeys(t)
	var made []string
	for _, one := range []struct{ dir, umask, zone string }{{"one", "022", "UTC"}, {"another/deeper", "077", "Asia/Tokyo"}} {
		clone := filepath.Join(t.TempDir(), one.dir, "gpufabric")
		gitIn(t.Context(), t, root, "clone", "--quiet", root, clone)
		command := exec.CommandContext(t.Context(), "sh", "-c", "umask "+one.umask+" && exec make release VERSION="+version+" KEYS="+shared.keys)
		command.Dir = clone
		command.Env = append(os.Environ(), "TZ="+one.zone, "CGO_CFLAGS=-O0", "VERSION=")
		command.Stdout, command.Stderr = t.Output(), t.Output()
		must(t, command.Run())
		made = append(made, filepath.Join(clone, "dist", version))
	}
	differences, err := Compare(made[0], made[1])
	must(t, err)
	if len(differences) > 0 {
		t.Errorf("the two differ:\n%s", strings.Join(differences, "\n"))
	}
	all, err := expand(made[0])
	must(t, err)
	for _, want := range []string{"usr/bin/gpufabric", "usr/lib/gpufabric/libvgpu.so", "libnvidia-ml.so.1",
		"_windows_amd64.zip!", "libc.so.6"} {
		found := false
		for name := range all {
			found = found || strings.Contains(name, want)
		}
		if !found {
			t.Errorf("the release has no %s", want)
		}
	}
	small := shared.release
	t.Cleanup(func() { shared.release = small })
	shared.release = readBack(t, made[0])
	for _, page := range []struct {
		name string
		test func(*testing.T)
	}{
		{"verified", TestReleasePageCommandsVerifyARelease},
		{"records and origin", TestCosignShowsRecordsAndOriginOfEveryManifest},
		{"fetched", TestInstallPageCommandsFetchAndRenderAReleaseFromARegistry},
		{"installed", TestPagesCommandsInstallUpgradeAndRollBackReleasesFromARegistry},
	} {
		t.Run(page.name, page.test)
	}
}
