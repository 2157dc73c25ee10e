//go:build helm4

package charts

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/build/toolchain"
)

// TestHelm4RendersChartsAsHelm3 compares the objects. Helm 4 prints more empty lines, and another order within a kind. Both lint the charts
// too.
func TestHelm4RendersChartsAsHelm3(t *testing.T) {
	programs, err := toolchain.Ensure(t.Context(), "helm", "helm4")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct{ name, chart, values string }{
		{"gpufabric as it comes", "gpufabric", ""},
		{"gpufabric on fake hardware", "gpufabric", "fake-hardware/gpufabric-values.yaml"},
		{"gpufabric with a driver container", "gpufabric", "gpufabric/ci/driver-container.yaml"},
		{"gpufabric with everything on", "gpufabric", "gpufabric/ci/everything.yaml"},
		{"fake-hardware as it comes", "fake-hardware", ""},
		{"fake-hardware with everything on", "fake-hardware", "fake-hardware/ci/everything.yaml"},
	} {
		var values []string
		if one.values != "" {
			values = []string{"--values", Dir(one.values)}
		}
		rendered := map[string][]Object{}
		for name, program := range programs {
			run := func(arguments ...string) string {
				command := exec.CommandContext(t.Context(), program, append(arguments, values...)...)
				command.Env = append(os.Environ(), "HOME="+t.TempDir())
				var said bytes.Buffer
				command.Stderr = &said
				out, err := command.Output()
				if err != nil {
					t.Errorf("%s with %s: %v: %v\n%s%s", one.name, name, arguments, err, out, said.Bytes())
				}
				return string(out)
			}
			run("lint", "--strict", "--kube-version", Version, Dir(one.chart))
			text := run("template", "gpufabric", Dir(one.chart), "--namespace", namespace, "--kube-version", Version)
			objects, err := decode(map[string]string{"all.yaml": text})
			if err != nil {
				t.Errorf("%s with %s: %v", one.name, name, err)
			}
			slices.SortFunc(objects, func(a, b Object) int {
				return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetNamespace(), b.GetNamespace()),
					cmp.Compare(a.GetName(), b.GetName()))
			})
			rendered[name] = objects
		}
		three, four := rendered["helm"], rendered["helm4"]
		if len(three) != len(four) || len(three) == 0 {
			t.Errorf("%s: Helm 4 renders %d objects, Helm 3 %d", one.name, len(four), len(three))
			continue
		}
		for i := range three {
			if !reflect.DeepEqual(three[i].Object, four[i].Object) {
				t.Errorf("%s: object %d of Helm 4 is\n%v\nand of Helm 3\n%v", one.name, i, four[i].Object, three[i].Object)
			}
		}
	}
}

func TestHelm4RunsCommandsOfPages(t *testing.T) {
	live := startServer(t)
	live.followPages(t, live.shellWith(t, "helm4"))
}

// TestHelm4TakesOverReleaseOfHelm3AndReturnsIt installs each chart with one of the two, upgrades it with the other, rolls it back with
// the first and uninstalls it with the second.
func TestHelm4TakesOverReleaseOfHelm3AndReturnsIt(t *testing.T) {
	for _, pair := range [][2]string{{"helm", "helm4"}, {"helm4", "helm"}, {"helm4", "helm4"}} {
		t.Run(pair[0]+" and "+pair[1], func(t *testing.T) {
			live := startServer(t)
			first, second := live.shellWith(t, pair[0]), live.shellWith(t, pair[1])
			later := laterChart(t)
			first(t, "helm install gpufabric charts/gpufabric --namespace gpufabric-system --create-namespace --set gpus.enabled=true\n"+
				"helm install fake charts/fake-hardware --namespace gpufabric-system")
			if t.Failed() {
				return
			}
			before := live.revision(t)
			live.addDomain(t, "kept")
			second(t, "helm upgrade gpufabric "+later+" --namespace gpufabric-system --reset-then-reuse-values\n"+
				"helm upgrade fake charts/fake-hardware --namespace gpufabric-system --reset-then-reuse-values")
			if got, want := live.revision(t), (revision{"ghcr.io/gpufabric/gpufabric:0.2.0", "cd,nextcd"}); got != want {
				t.Errorf("after the upgrade: %+v, want %+v", got, want)
			}
			first(t, "helm rollback gpufabric 1 --namespace gpufabric-system\nhelm rollback fake 1 --namespace gpufabric-system")
			if got := live.revision(t); got != before {
				t.Errorf("after the rollback: %+v, want %+v", got, before)
			}
			if status := second(t, "helm history gpufabric --namespace gpufabric-system --output json"); strings.Count(status, `"revision"`) != 3 {
				t.Errorf("the other reads a history without three revisions: %s", status)
			}
			// Jobs have no controller here, see helm.uninstall.
			second(t, "helm uninstall fake gpufabric --namespace gpufabric-system --no-hooks")
			if !live.hasDomain(t, "kept") {
				t.Error("crds.keep is true, and uninstall removed a ComputeDomain")
			}
			sets, err := live.client.Resource(daemonSetResource).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(sets.Items) > 0 {
				t.Errorf("uninstall left %d DaemonSets (%v)", len(sets.Items), err)
			}
		})
	}
}

// laterChart writes the chart of next into a directory, which it returns.
func laterChart(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gpufabric")
	if err := os.CopyFS(dir, os.DirFS(Dir("gpufabric"))); err != nil {
		t.Fatal(err)
	}
	for path, replace := range map[string]*strings.Replacer{
		"Chart.yaml": strings.NewReplacer("\nversion: ", "\nversion: 0.2.0 # ", "\nappVersion: ", "\nappVersion: 0.2.0 # "),
		"files/crds/resource.nvidia.com_computedomains.yaml": strings.NewReplacer("    - cd\n", "    - cd\n    - nextcd\n"),
	} {
		content, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(replace.Replace(string(content))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestHelm4AdoptsCRDsOfHelm3AndOtherOwners has Helm 4 install a chart over CRDs of an earlier form. It applies on the server,
// where fields of another owner are conflicts unless they are forced.
func TestHelm4AdoptsCRDsOfHelm3AndOtherOwners(t *testing.T) {
	t.Run("kept by Helm 3", func(t *testing.T) {
		live := startServer(t)
		three, four := live.shellWith(t, "helm"), live.shellWith(t, "helm4")
		three(t, "helm install gpufabric charts/gpufabric --namespace gpufabric-system --create-namespace\n"+
			"helm uninstall gpufabric --namespace gpufabric-system --no-hooks")
		live.addDomain(t, "kept")
		four(t, "helm install gpufabric "+laterChart(t)+" --namespace gpufabric-system")
		if got := live.revision(t).shortNames; got != "cd,nextcd" {
			t.Errorf("the kept CRD was not upgraded: short names %s", got)
		}
		if !live.hasDomain(t, "kept") {
			t.Error("a ComputeDomain was lost")
		}
	})
	t.Run("another owner's", func(t *testing.T) {
		live := startServer(t)
		four := live.shellWith(t, "helm4")
		other := crdObject(t)
		other.SetLabels(nil)
		other.SetAnnotations(nil)
		if err := unstructured.SetNestedStringSlice(other.Object, []string{"cd", "theirs"}, "spec", "names", "shortNames"); err != nil {
			t.Fatal(err)
		}
		if _, err := live.client.Resource(crdResource).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		four(t, "helm upgrade --install gpufabric charts/gpufabric --namespace gpufabric-system --create-namespace --take-ownership "+
			"--force-conflicts --set takeOver=true")
		if got := live.revision(t).shortNames; got != "cd" {
			t.Errorf("the other owner's CRD was not replaced: short names %s", got)
		}
	})
}
