package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// Volcano's scheduler reads its ConfigMap in kube-system; the public plugin mounts one of its own namespace.
func TestConfigurationIsReadFromVolcanosConfigMap(t *testing.T) {
	file := filepath.Join(t.TempDir(), "device-config.yaml")
	if err := os.WriteFile(file, []byte("nvidia:\n  deviceSplitCount: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	configMap := func(key, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "volcano-vgpu-device-config"},
			Data: map[string]string{key: text}}
	}
	volcanos := configMap("device-config.yaml", "nvidia:\n  deviceSplitCount: 7\n  gpuMemoryFactor: 10\n")
	for name, test := range map[string]struct {
		namespace string
		standing  *corev1.ConfigMap
		split     int
		wrong     string
	}{
		"where Volcano reads it":          {"kube-system", volcanos, 7, ""},
		"mounted, where Volcano has none": {"kube-system", nil, 3, ""},
		"mounted, where nothing else is":  {"", volcanos, 3, ""},
		"a ConfigMap without the key": {"kube-system", configMap("config", ""), 0,
			"ConfigMap kube-system/volcano-vgpu-device-config: it has no key device-config.yaml"},
		"a mistake is named with its place": {"kube-system", configMap("device-config.yaml", "nvidia: {resourceCoreName: a/b}"), 0,
			"--scheduler=gpufabric"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &Options{}
			set := pflag.NewFlagSet(Role, pflag.ContinueOnError)
			o.Bind(set, func(string) string { return "" })
			if err := set.Parse([]string{"--config-namespace=" + test.namespace, "--device-config=" + file}); err != nil {
				t.Fatal(err)
			}
			client := fake.NewClientset()
			if test.standing != nil {
				client = fake.NewClientset(test.standing)
			}
			got, err := o.settings(t.Context(), client)
			if test.wrong == "" && (err != nil || got.SplitCount != test.split) ||
				test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
				t.Errorf("split count %d (%v), want %d, %q", got.SplitCount, err, test.split, test.wrong)
			}
		})
	}
}
