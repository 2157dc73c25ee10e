package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/gputest"
)

// deviceTree gives a machine a device tree.
func deviceTree(t *testing.T, sysfs, compatible string) {
	t.Helper()
	path := filepath.Join(sysfs, "firmware/devicetree/base/compatible")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(compatible), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestJetsonIsRecognisedByItsDeviceTree(t *testing.T) {
	for compatible, want := range map[string]bool{
		"nvidia,p3737-0000+p3701-0000\x00nvidia,p3701-0000\x00nvidia,tegra234\x00": true,
		"raspberrypi,5-model-b\x00brcm,bcm2712\x00":                                false,
		"": false,
	} {
		sysfs := t.TempDir()
		if compatible != "" {
			deviceTree(t, sysfs, compatible)
		}
		if got := jetson(sysfs); (got != "") != want {
			t.Errorf("%q: got %q", compatible, got)
		}
	}
}

func TestPluginRefusesJetsonInOneSentence(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	b.stop()
	b.options.SysfsRoot = t.TempDir()
	deviceTree(t, b.options.SysfsRoot, "nvidia,p3737-0000+p3701-0000\x00nvidia,tegra234\x00")
	lib := &unloaded{Machine: b.machine}
	lib.away.Store(true)
	b.lib = lib
	b.start()
	claim := b.claim("u1", nil, device{name: "gpu-0"})
	b.await(func() bool { return strings.Contains(b.prepareWithin(time.Second, claim), "Jetson (nvidia,tegra234)") },
		"the answer to a claim names the Jetson")
}
