//shows:vgpu-limits
package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/decks"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/injection"
)

func TestAContainerGetsTheImagesLibraryAndItsLimits(t *testing.T) {
	program, err := os.Executable() // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, "--gpu-memory-factor=10", "--limiter-library="+program)
	n.kubelet.AwaitAllocatable("volcano.sh/vgpu-number", 20)
	n.annotation(annotation.Limits, func(by string) bool { return by == string(injection.Library) })
	uuid := n.machine.GPUs[1].UUID
	n.schedule("train", uuid+",NVIDIA,1024,50:;", "main")
	_, response := n.allocate("volcano.sh/vgpu-number", 1)
	host := map[string]string{}
	for _, m := range response.Mounts {
		host[m.ContainerPath] = m.HostPath
	}
	if host["/usr/local/vgpu/libvgpu.so"] != filepath.Join(n.options.StateDir, "lib/libvgpu.so") {
		t.Errorf("mounts %v", host)
	}
	for path, want := range map[string]string{"/etc/ld.so.preload": "/usr/local/vgpu/libvgpu.so\n",
		"/usr/local/vgpu/limits": "gpufabric-limits 1\n" + uuid + " 10737418240 50\n"} {
		if content, err := os.ReadFile(host[path]); err != nil || string(content) != want {
			t.Errorf("%s is %q (%v), want %q", path, content, err, want)
		}
	}
	if pod := n.phase("train", annotation.BindSuccess); pod.Annotations[annotation.Limits] != "main=library" {
		t.Errorf("annotations %v", pod.Annotations)
	}
}

func TestAWishThatTheNodeCannotFulfilIsRefusedInWords(t *testing.T) {
	o := Options{Limits: string(injection.Library), LimiterLibrary: filepath.Join(t.TempDir(), "missing")}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--limiter-library") {
		t.Errorf("got %v", err)
	}
}

func TestContainersAreCountedByWhatHoldsThem(t *testing.T) {
	book := &holdings.Book{}
	for id, by := range map[string]string{"a": "library", "b": "library", "c": ""} {
		if err := book.Hold(&decks.Deck{}, holdings.Holder{ID: id, Limits: by}, nil); err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newLimited(book))
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%v (%v)", families, err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if len(got) != 2 || got["library"] != 2 || got["unknown"] != 1 {
		t.Errorf("%v", got)
	}
}
