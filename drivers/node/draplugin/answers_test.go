package draplugin

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/options"
)

// TestAnswersReportsUnreachablePlugin runs a plugin that the kubelet cannot reach, in each way that this can happen to a
// process.
func TestAnswersReportsUnreachablePlugin(t *testing.T) {
	for name, test := range map[string]struct {
		deafen func(t *testing.T, p *Plugin, service, registration string)
		want   string
	}{
		"it answers": {func(*testing.T, *Plugin, string, string) {}, ""},
		"its socket for claims is gone": {func(t *testing.T, _ *Plugin, service, _ string) { take(t, service) },
			"by which the kubelet prepares claims of driver " + driver + ", does not answer"},
		"its socket for registration is gone": {func(t *testing.T, _ *Plugin, _, registration string) { take(t, registration) },
			"by which driver " + driver + " is registered with the kubelet, does not answer"},
		"another listens and never answers": {func(t *testing.T, _ *Plugin, service, _ string) {
			take(t, service)
			listener, err := net.Listen("unix", service)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
		}, "does not answer"},
		"it has stopped": {func(_ *testing.T, p *Plugin, _, _ string) { p.Stop() }, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "deaf") // t.TempDir() leaves no room for a socket's name
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			measured := metrics.New(driver)
			p, err := Start(t.Context(), Config{
				Driver: driver, Preparer: &testKind{prepare: inject}, Metrics: measured, Recorder: record.NewFakeRecorder(10),
				Client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}),
				Node: options.Node{NodeName: "node-a", DriverRoot: "/", SysfsRoot: dir, DevRoot: dir, CDIRoot: dir + "/cdi", StateDir: dir + "/state",
					ProcDevices: dir + "/devices", KubeletRoot: dir},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Stop)
			test.deafen(t, p, filepath.Join(dir, "plugins", driver, "dra.sock"), filepath.Join(dir, "plugins_registry", driver+"-reg.sock"))
			begun := time.Now()
			err = p.Answers()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("it took %s to say so", took)
			}
			families, err := measured.Registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				if family.GetName() == "gpufabric_claim_step_seconds" {
					t.Errorf("a question to itself counts as a call of the kubelet's: %v", family)
				}
			}
		})
	}
}

// A kubelet that refuses a plugin sends it no claims, so a rollout must stop there. The kubelet tries again by itself, so a restart
// would not help.
func TestPluginIsNotReadyWhenKubeletRefusesIt(t *testing.T) {
	dir, err := os.MkdirTemp("", "refused") // t.TempDir() leaves no room for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p, err := Start(t.Context(), Config{
		Driver: driver, Preparer: &testKind{prepare: inject}, Metrics: metrics.New(driver), Recorder: record.NewFakeRecorder(10),
		Client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}),
		Node: options.Node{NodeName: "node-a", DriverRoot: "/", SysfsRoot: dir, DevRoot: dir, CDIRoot: dir + "/cdi", StateDir: dir + "/state",
			ProcDevices: dir + "/devices", KubeletRoot: dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if err := p.Registered(); err != nil {
		t.Errorf("before the kubelet has noticed it: %v", err)
	}
	p.registration.offered(time.Now().Add(-2 * noticePatience))
	if err := p.Registered(); err == nil || !strings.Contains(err.Error(), "has not detected driver "+driver+" for 2m") {
		t.Errorf("the kubelet has not noticed it for two minutes: %v", err)
	}
	for _, answer := range []*registerapi.RegistrationStatus{
		{PluginRegistered: false, Error: "unsupported version"}, {PluginRegistered: true},
	} {
		err := ask(filepath.Join(dir, "plugins_registry", driver+"-reg.sock"), func(connection *grpc.ClientConn) error {
			_, err := registerapi.NewRegistrationClient(connection).NotifyRegistrationStatus(t.Context(), answer)
			return err
		})
		if answer.PluginRegistered && err != nil {
			t.Fatal(err) // the helper library answers a refusal with an error
		}
		err = p.Registered()
		if answer.PluginRegistered && err != nil {
			t.Errorf("registered: %v", err)
		}
		words := "refuses to register driver " + driver + `: "unsupported version"`
		if !answer.PluginRegistered && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("refused: %v", err)
		}
		if err := p.Answers(); err != nil {
			t.Errorf("it is not alive: %v", err)
		}
	}
}

// take removes a socket.
func take(t *testing.T, socket string) {
	t.Helper()
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
}
