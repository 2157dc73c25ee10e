package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/crane"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
)

// installs are the two lines of docs/install.md that fetch and install a released chart.
func installs(t *testing.T) (pull, install string) {
	t.Helper()
	root, err := repository.Root()
	must(t, err)
	page := get(t, filepath.Join(root, "docs/install.md"))
	block := regexp.MustCompile("(?s)```sh run-by=build/release/install_test.go\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/install.md has no block that this file runs")
	}
	text := strings.ReplaceAll(string(block[1]), "\\\n", " ")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "helm pull ") || !strings.HasPrefix(lines[1], "helm upgrade --install ") {
		t.Fatalf("docs/install.md installs by %q, want helm pull and helm upgrade --install", lines)
	}
	return lines[0], lines[1]
}

// helm runs a line of the page in dir with a Helm program, against a registry of the test.
func helm(t *testing.T, program, dir, registry, line string) (string, error) {
	t.Helper()
	line = strings.NewReplacer(Registry, registry, "0.1.0", version).Replace(line)
	run := exec.CommandContext(t.Context(), "sh", "-c", line)
	run.Dir = dir
	run.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"), "KUBECONFIG="+dir+"/none",
		"HELM_CACHE_HOME="+dir+"/cache", "HELM_CONFIG_HOME="+dir+"/config", "HELM_DATA_HOME="+dir+"/data")
	out, err := run.CombinedOutput()
	return string(out), err
}

// TestInstallPageCommandsFetchAndRenderAReleaseFromARegistry pushes a release, and follows docs/install.md with Helm itself. No cluster is
// there: the second line renders. Each image that the chart names has to be in the registry, by its digest.
func TestInstallPageCommandsFetchAndRenderAReleaseFromARegistry(t *testing.T) {
	r, s := released(t), newServer(t)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	tools, err := toolchain.Ensure(t.Context(), "helm")
	must(t, err)
	pull, install := installs(t)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "openpgp.gpg"), string(get(t, filepath.Join(r.Out, "openpgp.gpg"))))
	if out, err := helm(t, tools["helm"], dir, s.path(), pull+" --plain-http"); err != nil {
		t.Fatalf("%s: %v\n%s", pull, err, out)
	}
	line := strings.NewReplacer("helm upgrade --install", "helm template", " --create-namespace", "").Replace(install) +
		" --kube-version v1.36.3 --set scheduler.enabled=true --set scheduler.image.repository=" + s.path() + "/gpufabric-scheduler"
	out, err := helm(t, tools["helm"], dir, s.path(), line)
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	var images []string
	for _, match := range regexp.MustCompile(`(?m)^ *image: "?([^"\s]+)"?$`).FindAllStringSubmatch(out, -1) {
		images = append(images, match[1])
	}
	slices.Sort(images)
	images = slices.Compact(images)
	if len(images) != 2 {
		t.Errorf("the chart names images %v, want gpufabric and its scheduler", images)
	}
	for _, image := range images {
		name, digest, pinned := strings.Cut(image, "@")
		if !pinned || !strings.HasPrefix(name, s.path()+"/") {
			t.Errorf("image %s: want one of %s by its digest", image, s.path())
			continue
		}
		if got, err := crane.Digest(image, crane.Insecure); err != nil || got != digest {
			t.Errorf("image %s: the registry has %s (%v)", image, got, err)
		}
	}
}

func TestInstallPageCommandRefusesAChartWhenItsSignerIsAnother(t *testing.T) {
	r, s := released(t), newServer(t)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	tools, err := toolchain.Ensure(t.Context(), "helm")
	must(t, err)
	other, dir := t.TempDir(), t.TempDir()
	must(t, WriteKeys(other, "other", "other@example.com", 2048))
	keys, err := ReadKeys(other)
	must(t, err)
	_, ring, err := keys.PublicPGP()
	must(t, err)
	put(t, filepath.Join(dir, "openpgp.gpg"), string(ring))
	pull, _ := installs(t)
	if out, err := helm(t, tools["helm"], dir, s.path(), pull+" --plain-http"); err == nil || !strings.Contains(out, "openpgp") {
		t.Errorf("%s by the keys of another: error %v\n%s", pull, err, out)
	}
}
