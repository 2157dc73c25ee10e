package doctor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/rdma/apiservertest"
)

// hostile is a text that a tenant may use as a scheduling gate's reason or write into a status: it clears a terminal and reverses
// text.
const hostile = "\x1b[2J\u009b31m\u202egnp.exe"

// archive writes a Snapshot of a small cluster into a file.
func archive(t *testing.T, with func(*snapshot.Snapshot)) string {
	t.Helper()
	s := &snapshot.Snapshot{Server: snapshot.Server{Version: "v1.36.0", Groups: []string{"resource.k8s.io/v1"}, Taken: time.Now()},
		Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}}}
	with(s)
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Save(file, nil), file.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs `gpufabric doctor ARGS...` and returns what it wrote and its exit status.
func run(t *testing.T, config *rest.Config, args ...string) (string, int, error) {
	t.Helper()
	var out bytes.Buffer
	h := host.Host{Stdout: &out, Stderr: &out}
	if config != nil {
		h.RESTConfig = func() (*rest.Config, error) { return config, nil }
	}
	command := doctor.Command(h)
	command.SetArgs(args)
	command.SilenceErrors, command.SilenceUsage = true, true
	err := command.ExecuteContext(t.Context())
	var status *doctor.StatusError
	switch {
	case errors.As(err, &status):
		return out.String(), status.Status, err
	case err != nil:
		return out.String(), 1, err
	}
	return out.String(), 0, nil
}

func TestHostileWordsDoNotReachTheTerminal(t *testing.T) {
	path := archive(t, func(s *snapshot.Snapshot) {
		s.Pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
			Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: hostile}}}, Status: corev1.PodStatus{Phase: corev1.PodPending}}}
	})
	for _, output := range []string{"text", "json"} {
		out, status, err := run(t, nil, "pod", "p", "--from", path, "--output", output)
		if status != 17 {
			t.Errorf("%s: status %d (%v), want 17 of the scheduler's link", output, status, err)
		}
		if strings.ContainsAny(out, "\x1b\u009b\u202e") || !strings.Contains(out, "gnp.exe") {
			t.Errorf("%s: %q", output, out)
		}
		var report diagnosis.Report
		if output == "json" && (json.Unmarshal([]byte(out), &report) != nil || report.First.Code != "PodGated" ||
			!strings.Contains(report.First.Says, hostile)) {
			t.Errorf("the JSON is not read back: %s", out)
		}
	}
}

func TestExitStatusHasTheFirstCause(t *testing.T) {
	well := archive(t, func(s *snapshot.Snapshot) {
		s.DaemonSets = []appsv1.DaemonSet{{ObjectMeta: metav1.ObjectMeta{Namespace: "gpufabric-system", Name: "gpufabric-gpu-plugin",
			Labels: map[string]string{
				"app.kubernetes.io/part-of": "gpufabric", "app.kubernetes.io/component": "gpu-plugin"}}}}
		for _, name := range []string{"computedomains.resource.nvidia.com", "rdmapools.gpufabric.io", "miglayouts.gpufabric.io",
			"vgpuprofiles.gpufabric.io"} {
			s.CRDs = append(s.CRDs, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	})
	blind := archive(t, func(s *snapshot.Snapshot) {
		for _, kind := range []string{"daemonsets.apps", "nodes", "pods"} {
			s.Unread = append(s.Unread, snapshot.Unread{Kind: kind, Verb: "list", Why: snapshot.Forbidden, Message: "forbidden"})
		}
	})
	bare := archive(t, func(*snapshot.Snapshot) {})
	cut := filepath.Join(t.TempDir(), "cut.tar.gz")
	content, err := os.ReadFile(well)
	if err == nil {
		err = os.WriteFile(cut, content[:len(content)-40], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"nothing found":            {[]string{"--from", well}, 0, "nothing was found"},
		"not installed":            {[]string{"install", "--from", bare}, 12, "NotInstalled"},
		"rights missing":           {[]string{"--from", blind}, 3, "you lack the right to list daemonsets.apps, list nodes, list pods"},
		"a name that is near":      {[]string{"node", "n2", "--from", well}, 2, "there is node n1"},
		"an unknown kind":          {[]string{"gpu", "0", "--from", well}, 1, "pod, claim, node"},
		"a kind without a name":    {[]string{"pod", "--from", well}, 1, "gpufabric doctor pod NAME"},
		"an unknown output":        {[]string{"--from", well, "-o", "yaml"}, 1, "text or json"},
		"two namespaces":           {[]string{"pod", "a/b", "-n", "c", "--from", well}, 1, "namespace a"},
		"no archive":               {[]string{"--from", "/dev/null"}, 1, "not an archive"},
		"an archive that was cut":  {[]string{"--from", cut}, 3, "the archive ends before it"},
		"an archive that is not":   {[]string{"--from", "/nonexistent"}, 1, "read the archive"},
		"a kubeconfig that is not": {[]string{"--kubeconfig", "/nonexistent"}, 1, "find an API server"},
	} {
		t.Run(name, func(t *testing.T) {
			out, status, err := run(t, nil, c.args...)
			if err != nil {
				out += err.Error()
			}
			if status != c.status || !strings.Contains(out, c.says) {
				t.Errorf("status %d, want %d:\n%s", status, c.status, out)
			}
		})
	}
}

func TestCommandsRunOnARealServer(t *testing.T) {
	config := apiservertest.Start(t)
	out, status, err := run(t, config, "preflight", "--request-timeout=1m")
	// A cluster without nodes cannot run a plugin, but an autoscaler may add nodes.
	if status != 0 || !strings.Contains(out, "resource.k8s.io/v1") || !strings.Contains(out, "0 of 0 nodes") {
		t.Errorf("preflight: status %d, %v\n%s", status, err, out)
	}
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if out, status, err = run(t, config, "bundle", "--file", file, "--request-timeout=1m"); status != 0 {
		t.Fatalf("bundle: %d %v\n%s", status, err, out)
	}
	if out, status, _ = run(t, nil, "--from", file); status != 12 || !strings.Contains(out, "CRDMissing") && !strings.Contains(out,
		"NotInstalled") {
		t.Errorf("the bundle is read as %d\n%s", status, out)
	}
	if _, status, err = run(t, config, "bundle", "--file", file, "--request-timeout=1m"); status != 1 || !strings.Contains(err.Error(),
		"--file") {
		t.Errorf("an archive that is there was written over: %d %v", status, err)
	}
	viewer := rest.CopyConfig(config)
	viewer.BearerToken = apiserver.ViewerToken
	if out, status, err = run(t, viewer, "install", "--request-timeout=1m"); status != doctor.ExitUnknown || !strings.Contains(out,
		"you lack the right to list") {
		t.Errorf("without rights: %d %v\n%s", status, err, out)
	}
}
