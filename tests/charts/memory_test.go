package charts

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// unlimited are the containers without a limit of memory, with the reason.
func unlimited() map[string]string {
	return map[string]string{
		"gpufabric-mps-keeper": "NVIDIA's MPS servers are its children, whose memory was never measured: a limit ends their clients' work",
	}
}

// TestContainersHaveMemoryLimitAndGOMEMLIMITBelowIt reads GOMEMLIMIT as nine tenths of each limit.
func TestContainersHaveMemoryLimitAndGOMEMLIMITBelowIt(t *testing.T) {
	values := everything()
	values["console"], values["scheduler"] = on(), on()
	found := map[string]bool{}
	for name, pod := range pods(t, renderValues(t, "gpufabric", values)) {
		found[name] = true
		for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			limit, limited := container.Resources.Limits[corev1.ResourceMemory]
			if unlimited()[name] != "" {
				if limited {
					t.Errorf("%s has a limit: remove it from the list here", name)
				}
				continue
			}
			if !limited {
				t.Errorf("%s, container %s: no limit of memory", name, container.Name)
			}
			if got, want := goMemoryLimit(container), strconv.FormatInt(limit.Value()*9/10, 10); got != want && got != increased(want) {
				t.Errorf("%s, container %s: GOMEMLIMIT is %q, want %s", name, container.Name, got, want)
			}
		}
	}
	for name := range unlimited() {
		if !found[name] {
			t.Errorf("%s is not rendered: remove it from the list here", name)
		}
	}
}

// increased is a number rounded up instead of down.
func increased(number string) string {
	n, _ := strconv.ParseInt(number, 10, 64)
	return strconv.FormatInt(n+1, 10)
}

func goMemoryLimit(container corev1.Container) string {
	for _, variable := range container.Env {
		if variable.Name == "GOMEMLIMIT" {
			return variable.Value
		}
	}
	return ""
}

// TestGOMEMLIMITFollowsEveryFormOfQuantity gives the limit in each form that the schema takes.
func TestGOMEMLIMITFollowsEveryFormOfQuantity(t *testing.T) {
	for _, test := range []struct {
		limit any
		want  string
	}{
		{"100Mi", "94371840"}, {"1Gi", "966367642"}, {"0.5Gi", "483183821"}, {"200M", "180000000"}, {"1G", "900000000"}, {"1000k", "900000"},
		{"134217728", "120795955"}, {134217728, "120795955"}, {1.5e9, "1350000000"}, {nil, ""},
	} {
		t.Run(fmt.Sprint(test.limit), func(t *testing.T) {
			rendered := pods(t, renderValues(t, "gpufabric", map[string]any{"controller": map[string]any{
				"resources": map[string]any{"limits": map[string]any{"memory": test.limit}}}}))
			if got := goMemoryLimit(rendered["gpufabric-controller"].Spec.Containers[0]); got != test.want {
				t.Errorf("GOMEMLIMIT is %q, want %q", got, test.want)
			}
		})
	}
}

// TestGPUPluginHasNoMemoryLimitWhenMPSDaemonsAreItsChildren: the limit would hold for them too.
func TestGPUPluginHasNoMemoryLimitWhenMPSDaemonsAreItsChildren(t *testing.T) {
	rendered := pods(t, renderValues(t, "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true, "mpsKeeper": off()}}))
	container := rendered["gpufabric-gpu-plugin"].Spec.Containers[0]
	if _, limited := container.Resources.Limits[corev1.ResourceMemory]; limited || goMemoryLimit(container) != "" {
		t.Errorf("limits %v, GOMEMLIMIT %q", container.Resources.Limits, goMemoryLimit(container))
	}
}

// TestMemoryLimitsFollowMeasuredFigures compares the chart's limits with the table of docs/reports/measurements.md: twice
// what a role had at most, with the 32 MiB that 20,000 connections may cost.
func TestMemoryLimitsFollowMeasuredFigures(t *testing.T) {
	page, err := os.ReadFile(Dir("../docs/reports/measurements.md"))
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(Dir("gpufabric/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(content, &values); err != nil {
		t.Fatal(err)
	}
	reported := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)\\.resources` \\| ([0-9]+) \\| ([0-9]+) \\|")
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		path, measured, limit := match[1], match[2], match[3]
		reported[path] = true
		most, _ := strconv.ParseInt(measured, 10, 64)
		want := resource.MustParse(limit + "Mi")
		if have := memoryLimit(t, values, path); have.Cmp(want) != 0 {
			t.Errorf("%s: the chart's limit is %s, and the page's %s", path, have.String(), want.String())
		}
		if least := resource.NewQuantity(2*(most+32)<<20, resource.BinarySI); want.Cmp(*least) < 0 {
			t.Errorf("%s had %d MiB: a limit of %s is less than %s", path, most, want.String(), least.String())
		}
	}
	for _, path := range []string{"controller", "computeDomains.plugin", "gpus.plugin", "rdma.plugin", "vgpu.plugin", "vgpu.monitor",
		"scheduler", "webhook", "console"} {
		if !reported[path] {
			t.Errorf("docs/reports/measurements.md has no figure for %s.resources", path)
		}
	}
}

// memoryLimit is the limit that the values have below a path.
func memoryLimit(t *testing.T, values map[string]any, path string) resource.Quantity {
	t.Helper()
	at := values
	for _, key := range append(strings.Split(path, "."), "resources", "limits") {
		below, ok := at[key].(map[string]any)
		if !ok {
			t.Fatalf("values.yaml has no %s.resources.limits", path)
		}
		at = below
	}
	quantity, err := resource.ParseQuantity(fmt.Sprint(at["memory"]))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return quantity
}
