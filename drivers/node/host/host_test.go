package host

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/node/filewatch"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://api.example:6443"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: c
`

func TestHostDescribesTheConnectionToTheAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	good, bad := filepath.Join(t.TempDir(), "good"), filepath.Join(t.TempDir(), "bad")
	for path, text := range map[string]string{good: kubeconfig, bad: "{"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ name, path, server, problem string }{
		{"a kubeconfig", good, "https://api.example:6443", ""},
		{"one that is none", bad, "", "read KUBECONFIG " + bad},
		{"none, outside a cluster", "", "", "KUBECONFIG is not set, and this process does not run in a pod"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := Host{Getenv: func(name string) string { return map[string]string{"KUBECONFIG": test.path}[name] }}
			config, err := h.Kubernetes()
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) {
					t.Errorf("got %v, want %q", err, test.problem)
				}
				return
			}
			if err != nil || config.Host != test.server {
				t.Errorf("got %v, %v", config, err)
			}
		})
	}
	own := &rest.Config{Host: "mine"}
	if config, err := (Host{RESTConfig: func() (*rest.Config, error) { return own, nil }}).Kubernetes(); err != nil || config != own {
		t.Errorf("a host's own configuration: %v, %v", config, err)
	}
}

func TestHostIsUsedByRoles(t *testing.T) {
	t.Setenv("GPUFABRIC_HOST_TEST", "the machine's")
	if got := (Host{}).Env("GPUFABRIC_HOST_TEST"); got != "the machine's" {
		t.Errorf("the environment has %q", got)
	}
	var out, log bytes.Buffer
	files := &filewatch.Watcher{}
	h := Host{Stdout: &out, Stderr: &log, Files: files, Getenv: func(string) string { return "the role's" }}
	if h.Env("GPUFABRIC_HOST_TEST") != "the role's" || h.Out() != &out || h.Watcher() != files || (Host{}).Watcher() == nil {
		t.Error("a role has the machine's in place of its host's")
	}
	logger := h.Logger("a-role", 1)
	logger.V(1).Info("said")
	logger.V(2).Info("left out")
	if text := log.String(); !strings.Contains(text, "said") || !strings.Contains(text, "a-role") || strings.Contains(text, "left out") {
		t.Errorf("logged %q", text)
	}
}

// One configuration serves several clients: none may change it for the others.
func TestConnectTunesClientPerRole(t *testing.T) {
	config := &rest.Config{Host: "https://api.example", QPS: 1, Burst: 1}
	tuned := Tune(config, "gpu-plugin")
	if tuned.QPS != queriesPerSecond || tuned.Burst != burst || !strings.HasSuffix(tuned.UserAgent, "/gpu-plugin") {
		t.Errorf("tuned to %g, %d, %q", tuned.QPS, tuned.Burst, tuned.UserAgent)
	}
	if _, err := Client(config, "gpu-plugin"); err != nil {
		t.Error(err)
	}
	if config.QPS != 1 || config.UserAgent != "" || config.ContentType != "" {
		t.Errorf("the configuration was changed: %+v", config)
	}
	if _, err := Client(&rest.Config{Host: "::"}, "gpu-plugin"); err == nil || !strings.Contains(err.Error(), "::") {
		t.Errorf("an address that is none: %v", err)
	}
}

// events takes Events as the API server does: their text is UTF-8, of at most 1,024 bytes.
type events struct {
	record.EventRecorder
	t       *testing.T
	node    string
	printed string
}

func (e *events) Event(object runtime.Object, kind, reason, message string) {
	if len(message) > 1024 || !utf8.ValidString(message) || kind != corev1.EventTypeWarning || reason != "StateUnreadable" {
		e.t.Errorf("the API server refuses %d bytes, %s, %s: %q", len(message), kind, reason, message)
	}
	about := object.(*corev1.ObjectReference)
	e.node, e.printed = about.Name+" "+string(about.UID), message
}

func TestTroubleOfANodeIsAnEventThatTheAPIServerTakes(t *testing.T) {
	messages := []string{"short", strings.Repeat("x", 2000), strings.Repeat("x", 1023) + "ü and more", strings.Repeat("日", 500)}
	for _, message := range messages {
		e := &events{t: t}
		NodeTrouble(e, "node-a")("StateUnreadable", message)
		if e.node != "node-a node-a" || !strings.HasPrefix(message, e.printed) || len(message) < 1024 && e.printed != message {
			t.Errorf("of %.20q... is said %q, of %q", message, e.printed, e.node)
		}
	}
}
