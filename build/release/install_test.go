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

	"gpufabric.io/build/apiserver"
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

// operator follows the pages in a directory that has the release's public keyring, with a registry of the test.
type operator struct{ dir, path, registry string }

func newOperator(t *testing.T, registry string, r *Release, helm string) operator {
	t.Helper()
	tools, err := toolchain.Ensure(t.Context(), helm, "kubectl")
	must(t, err)
	programs := t.TempDir()
	must(t, os.Symlink(tools[helm], filepath.Join(programs, "helm")))
	o := operator{dir: t.TempDir(), registry: registry,
		path: programs + ":" + filepath.Dir(tools["kubectl"]) + ":" + os.Getenv("PATH")}
	put(t, filepath.Join(o.dir, "openpgp.gpg"), string(get(t, filepath.Join(r.Out, "openpgp.gpg"))))
	return o
}

// run runs a line of a page, which is of 0.1.0, for another version.
func (o operator) run(t *testing.T, version, line string) (string, error) {
	t.Helper()
	line = strings.NewReplacer(Registry, o.registry, "0.1.0", version).Replace(line)
	run := exec.CommandContext(t.Context(), "sh", "-c", line)
	run.Dir = o.dir
	run.Env = append(os.Environ(), "PATH="+o.path, "KUBECONFIG="+o.dir+"/kubeconfig",
		"HELM_CACHE_HOME="+o.dir+"/cache", "HELM_CONFIG_HOME="+o.dir+"/config", "HELM_DATA_HOME="+o.dir+"/data")
	out, err := run.CombinedOutput()
	return string(out), err
}

// must is run of a line that has to succeed.
func (o operator) must(t *testing.T, version, line string) string {
	t.Helper()
	out, err := o.run(t, version, line)
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// TestInstallPageCommandsFetchAndRenderAReleaseFromARegistry pushes a release, and follows docs/install.md with Helm itself. No cluster is
// there: the second line renders. Each image that the chart names has to be in the registry, by its digest.
func TestInstallPageCommandsFetchAndRenderAReleaseFromARegistry(t *testing.T) {
	fetchesAndRenders(t, "helm")
}

func fetchesAndRenders(t *testing.T, helm string) {
	t.Helper()
	r, s := released(t), newServer(t)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	o := newOperator(t, s.path(), r, helm)
	pull, install := installs(t)
	o.must(t, version, pull+" --plain-http")
	out := o.must(t, version, strings.NewReplacer("helm upgrade --install", "helm template", " --create-namespace", "").Replace(install)+
		" --kube-version v1.36.3 --set scheduler.enabled=true --set scheduler.image.repository="+s.path()+"/gpufabric-scheduler")
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

// upgrades are the lines of docs/upgrade.md that upgrade, with the archive in place of the checkout's chart, and roll back.
func upgrades(t *testing.T) (upgrade, rollback string) {
	t.Helper()
	root, err := repository.Root()
	must(t, err)
	page := string(get(t, filepath.Join(root, "docs/upgrade.md")))
	upgrade = regexp.MustCompile(`(?m)^helm upgrade .*$`).FindString(page)
	rollback = regexp.MustCompile(`(?m)^helm rollback .*$`).FindString(page)
	if !strings.Contains(upgrade, " charts/gpufabric ") || rollback == "" {
		t.Fatalf("docs/upgrade.md upgrades by %q and rolls back by %q", upgrade, rollback)
	}
	return strings.Replace(upgrade, " charts/gpufabric ", " gpufabric-0.1.0.tgz ", 1), rollback
}

func TestPagesCommandsInstallUpgradeAndRollBackReleasesFromARegistry(t *testing.T) {
	api := apiserver.Start(t)
	s := newServer(t)
	digests := map[string]string{}
	first := released(t)
	next := assembledAs(t, "0.1.0", func(root string) {
		put(t, filepath.Join(root, "bin/gpufabric"), string(compiled(t, "amd64"))+"of the next release")
	})
	for _, r := range []*Release{first, next} {
		must(t, Push(t.Context(), r.Out, s.path(), quiet))
		digests[r.Version] = s.path() + "/gpufabric@" + r.digests["gpufabric"].String()
	}
	o := newOperator(t, s.path(), first, "helm")
	if *given != "" { // the next release has the tests' own keys
		ring := append(get(t, filepath.Join(first.Out, "openpgp.gpg")), get(t, filepath.Join(next.Out, "openpgp.gpg"))...)
		must(t, os.WriteFile(filepath.Join(o.dir, "openpgp.gpg"), ring, 0o600))
	}
	put(t, filepath.Join(o.dir, "ca.pem"), string(api.CA))
	for _, command := range []string{
		"set-cluster test --server=" + api.URL + " --certificate-authority=ca.pem",
		"set-credentials test --token=" + apiserver.AdminToken, "set-context test --cluster=test --user=test", "use-context test",
	} {
		o.must(t, version, "kubectl config "+command)
	}
	runs := func(after, want string) {
		t.Helper()
		out := o.must(t, version, "kubectl --namespace gpufabric-system get daemonsets,deployments "+
			"--output 'jsonpath={range .items[*]}{.spec.template.spec.containers[*].image}{\"\\n\"}{end}'")
		images := strings.Fields(out)
		slices.Sort(images)
		if images = slices.Compact(images); len(images) != 1 || images[0] != digests[want] {
			t.Errorf("after %s the cluster runs %v, want %s", after, images, digests[want])
		}
	}
	pull, install := installs(t)
	upgrade, rollback := upgrades(t)
	o.must(t, version, pull+" --plain-http")
	o.must(t, version, install)
	runs("the install", version)
	o.must(t, "0.1.0", pull+" --plain-http")
	o.must(t, "0.1.0", upgrade)
	runs("the upgrade", "0.1.0")
	o.must(t, "0.1.0", rollback)
	runs("the rollback", version)
	if out := o.must(t, "0.1.0", strings.Replace(upgrade, "--reset-then-reuse-values", "--reuse-values", 1)); !strings.Contains(out,
		"WARNING: the pods run "+digests[version]) {
		t.Errorf("an upgrade that keeps the image of the release before does not report it:\n%s", out)
	}
	runs("the upgrade that keeps the image", version)
	o.must(t, "0.1.0", upgrade)
	runs("the second upgrade", "0.1.0")
	if out := o.must(t, "0.1.0", "helm get notes gpufabric --namespace gpufabric-system"); strings.Contains(out, "WARNING") {
		t.Errorf("the notes of an upgrade by the page warn:\n%s", out)
	}
}

func TestInstallPageCommandRefusesAChartWhenItsSignerIsAnother(t *testing.T) {
	refusesAnotherSigner(t, "helm")
}

func refusesAnotherSigner(t *testing.T, helm string) {
	t.Helper()
	r, s := released(t), newServer(t)
	must(t, Push(t.Context(), r.Out, s.path(), quiet))
	o := newOperator(t, s.path(), r, helm)
	other := t.TempDir()
	must(t, WriteKeys(other, "other", "other@example.com", 2048))
	keys, err := ReadKeys(other)
	must(t, err)
	_, ring, err := keys.PublicPGP()
	must(t, err)
	put(t, filepath.Join(o.dir, "openpgp.gpg"), string(ring))
	pull, _ := installs(t)
	if out, err := o.run(t, version, pull+" --plain-http"); err == nil || !strings.Contains(out, "openpgp") {
		t.Errorf("%s by the keys of another: error %v\n%s", pull, err, out)
	}
}
