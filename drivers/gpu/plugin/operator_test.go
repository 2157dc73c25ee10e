package plugin

import (
	"io"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/node/drain"
)

// driverManager plays what k8s-driver-manager of NVIDIA's GPU operator does with a node before it replaces the driver: uninstallDriver in
// its cmd/driver-manager/main.go. It sets the labels of components that run to paused, waits for the operator's own pods, evicts pods that
// ask for nvidia.com/gpu, unloads the modules, which fails while a program has the driver open, and sets the labels back.
type driverManager struct {
	*bench
	root string
}

const paused = "paused-for-driver-upgrade"

func (m driverManager) label(change func(value string) string) {
	m.Helper()
	node, err := m.client.CoreV1().Nodes().Get(m.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		m.Fatal(err)
	}
	set := map[string]any{}
	for key, value := range node.Labels {
		if strings.HasPrefix(key, "nvidia.com/gpu.deploy.") {
			set[key] = change(value)
		}
	}
	m.relabel(set)
}

// pause is maybeSetPaused for every component: those that are switched off stay so.
func (m driverManager) pause() {
	m.label(func(value string) string {
		switch value {
		case "", "false":
			return value
		case "true":
			return paused
		default:
			return value + "_" + paused
		}
	})
}

func (m driverManager) resume() {
	m.label(func(value string) string {
		if value == paused {
			return "true"
		}
		return strings.TrimSuffix(value, "_"+paused)
	})
}

// unload stands for rmmod, which fails with EBUSY as a reset does while a program has the GPU open.
func (m driverManager) unload(t *testing.T) bool {
	t.Helper()
	_, err := administrator(t, m.root, "-i", "0", "--gpu-reset")
	return err == nil
}

func newDriverManager(t *testing.T) driverManager {
	t.Helper()
	b, root := drainable(t)
	m := driverManager{b, root}
	b.relabel(map[string]any{"nvidia.com/gpu.deploy.device-plugin": "false", "nvidia.com/gpu.deploy.dcgm-exporter": "true",
		"nvidia.com/gpu.deploy.client": "true", "nvidia.com/gpu.deploy.mig-manager": "custom"})
	b.taints("gpu-0", "")
	return m
}

func TestPluginClosesNVMLWhenTheGPUOperatorReplacesTheDriver(t *testing.T) {
	m := newDriverManager(t)
	m.mustPrepare(m.claim("u1", nil, device{name: "gpu-1"}))
	if m.unload(t) {
		t.Fatal("the driver was unloaded while the plugin has NVML open")
	}
	m.pause()
	m.taints("gpu-0", drain.Taint+"=:NoSchedule")
	m.await(func() bool {
		return strings.Contains(m.event("Node", "DriverUpgradeWaits"), "claim default/claim-u1 has gpu-1")
	},
		"the claim that the upgrade waits for is named")
	m.await(func() bool { return m.unprepare(m.get("u1")) == "" }, "the claim is given back")
	m.await(func() bool { return m.unload(t) }, "the driver is unloaded")
	m.refused(m.claim("u2", nil, device{name: "gpu-1"}), "gpu.deploy.client="+paused)
	m.stop() // the plugin's pod is started again meanwhile
	m.start()
	if !m.unload(t) {
		t.Error("a plugin that was started again has NVML open")
	}
	m.resume()
	m.taints("gpu-1", "")
	again := m.claim("u3", nil, device{name: "gpu-1"})
	m.await(func() bool { return m.prepareWithin(time.Minute, again) == "" }, "a claim is prepared again")
}

// The manager sets its labels back when it has failed, and tries again when its container is started again.
func TestPluginOffersGPUsAgainWhenTheUpgradeIsGivenUp(t *testing.T) {
	m := newDriverManager(t)
	m.mustPrepare(m.claim("u1", nil, device{name: "gpu-1"}))
	m.pause()
	m.taints("gpu-0", drain.Taint+"=:NoSchedule")
	m.resume()
	m.taints("gpu-0", "")
}

func TestDrainOfAnAdministratorOutlastsAnUpgrade(t *testing.T) {
	for _, when := range []string{"before", "during"} {
		t.Run(when, func(t *testing.T) {
			m := newDriverManager(t)
			drain := func() {
				if err := order(t.Context(), m.options.StateDir, "drain", io.Discard); err != nil {
					t.Fatal(err)
				}
			}
			if when == "before" {
				drain()
			}
			m.pause()
			if when == "during" {
				m.await(func() bool { return drainedOn(t, m.bench) }, "the node is drained")
				drain()
			}
			m.resume()
			// The labels have no further effect: watched by the plugin, they are back before this label is seen.
			m.awaitPause(t)
			if !drainedOn(t, m.bench) {
				t.Error("the GPUs are offered again, against the administrator's order")
			}
		})
	}
}

// awaitPause waits until the role has seen that no label pauses it.
func (m driverManager) awaitPause(t *testing.T) {
	t.Helper()
	pause := m.role.Load().drain.Operator.Pause
	for now, changed := pause.Get(); !now.Known || now.By != ""; now, changed = pause.Get() {
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("the role does not see the node's labels")
		}
	}
}
