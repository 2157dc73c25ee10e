package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/filelock"
	"gpufabric.io/build/repository"
	"gpufabric.io/build/steps"
	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/kindcluster"
)

const (
	clusterName = "gpufabric-e2e"
	profile     = "gb200-nvl72"
	// keepVariable keeps the cluster after the tests. Before them it uses a cluster that already runs.
	keepVariable = "GPUFABRIC_KEEP_CLUSTER"

	// Changes on a node's disk send no events, so the tests look this often, for this long. A kubelet of 1.36 may start no pod
	// for a minute while it reads a new list of units (docs/limitations.md, shares for Volcano).
	patience = 4 * time.Minute
	// inTime gives kubectl the same time. Speed is shown by measured figures, and not by short waits.
	inTime   = "--timeout=4m"
	interval = 500 * time.Millisecond
)

// environment is the cluster that all tests share.
type environment struct {
	*kindcluster.Cluster
	root    string
	printer *steps.Printer
}

// newEnvironment brings the cluster up, serves the images that `make build` made ready, and gives the workers their hardware.
func newEnvironment(t *testing.T) *environment { return newEnvironmentOf(t, clusterName, 2, profile) }

// newEnvironmentOf is newEnvironment with a cluster, a number of workers and a machine of a test's own.
func newEnvironmentOf(t *testing.T, clusterName string, workers int, profile string) *environment {
	t.Helper()
	e := newCluster(t, clusterName, workers)
	must(t, e.Serve(t.Context(), e.printer))
	must(t, e.Equip(t.Context(), e.printer, profile))
	return e
}

// newCluster brings a cluster up, without images of the project and without hardware.
func newCluster(t *testing.T, clusterName string, workers int) *environment {
	t.Helper()
	root, err := repository.Root()
	must(t, err)
	printer := steps.NewPrinter(os.Stderr)
	// Another run on this machine, from this checkout or another, would remove the cluster.
	unlock, err := filelock.Lock(t.Context(), filepath.Join(os.TempDir(), clusterName+".lock"), func() {
		fmt.Fprintf(printer, "another process runs tests in the cluster %s; waiting for it to end\n", clusterName)
	})
	must(t, err)
	t.Cleanup(unlock)
	if os.Getenv(keepVariable) == "" {
		t.Cleanup(func() {
			// The test's own context has ended by now.
			if err := kindcluster.Down(context.WithoutCancel(t.Context()), clusterName); err != nil {
				t.Errorf("remove the cluster: %v", err)
			}
		})
	}
	cluster, err := kindcluster.Up(t.Context(), kindcluster.Options{Name: clusterName, Workers: workers, Printer: printer})
	must(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		dir, err := cluster.ExportLogs(context.WithoutCancel(t.Context()))
		t.Logf("logs of the cluster: %s (error: %v)", dir, err)
	})
	measured(t, "kind bring-up", cluster.Took)
	return &environment{Cluster: cluster, root: root, printer: printer}
}

// kubectl runs kubectl. If that fails, the test fails with its output.
func (e *environment) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := e.Kubectl(t.Context(), nil, args...)
	if err != nil {
		t.Log(e.state(t))
	}
	must(t, err)
	return out
}

// state describes the test's objects and the drivers at this moment. The error of a wait that timed out does not have it.
func (e *environment) state(t *testing.T) string {
	var all strings.Builder
	for _, args := range [][]string{
		{"get", "pods,jobs,resourceclaims,daemonsets,deployments", "--all-namespaces", "--output=wide"},
		{"get", "computedomains", "--all-namespaces", "--output=yaml"},
		{"describe", "pods"},
		{"describe", "nodes"},
		{"get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"},
		{"--namespace", "gpufabric-system", "logs", "--selector", "app.kubernetes.io/name=gpufabric", "--prefix", "--tail=40",
			"--all-containers"},
		{"--namespace", "kube-system", "logs", "--selector", "app.kubernetes.io/name=gpufabric", "--prefix", "--tail=40", "--all-containers"},
	} {
		// If one fails, the others are still shown.
		out, err := e.Kubectl(context.WithoutCancel(t.Context()), nil, args...)
		fmt.Fprintf(&all, "\n$ kubectl %s\n%s", strings.Join(args, " "), out)
		if err != nil {
			fmt.Fprintf(&all, "%v\n", err)
		}
	}
	return all.String()
}

// apply applies a manifest. When the test ends it removes its remaining objects.
func (e *environment) apply(t *testing.T, manifest string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := e.Kubectl(ctx, strings.NewReader(manifest), "delete", "--ignore-not-found", inTime, "--filename", "-"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	_, err := e.Kubectl(t.Context(), strings.NewReader(manifest), "apply", "--filename", "-")
	must(t, err)
}

// kubectlCleanup runs kubectl after the test's own context has ended.
func (e *environment) kubectlCleanup(t *testing.T, args ...string) {
	t.Helper()
	if _, err := e.Kubectl(context.WithoutCancel(t.Context()), nil, args...); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

// served waits until the API server serves a CRD's objects to kubectl. kubectl uses discovery, which shows a CRD some time
// after it is Established.
func (e *environment) served(t *testing.T, crd string) {
	t.Helper()
	e.kubectl(t, "wait", "crd/"+crd, "--for=condition=Established", inTime)
	e.eventually(t, crd+" to be served", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", crd, "--all-namespaces", "--output", "name")
		return err == nil, out, err
	})
}

// refused applies a manifest that must be refused and returns the API server's error.
func (e *environment) refused(t *testing.T, manifest string) string {
	t.Helper()
	_, err := e.Kubectl(t.Context(), strings.NewReader(manifest), "apply", "--filename", "-")
	if err == nil {
		_, _ = e.Kubectl(t.Context(), strings.NewReader(manifest), "delete", "--ignore-not-found", "--filename", "-")
		t.Fatalf("the API server took it:\n%s", manifest)
	}
	return err.Error()
}

// get reads an object, or a list, into a struct as JSON.
func (e *environment) get(t *testing.T, into any, args ...string) {
	t.Helper()
	out := e.kubectl(t, append([]string{"get", "--output", "json"}, args...)...)
	must(t, json.Unmarshal([]byte(out), into))
}

// file reads a file of the checkout.
func (e *environment) file(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(e.root, path))
	must(t, err)
	return string(content)
}

// traces lists files on the nodes that still have one of the names (UIDs) in their own name or content, under the state and CDI
// directories.
func (e *environment) traces(ctx context.Context, names ...string) ([]string, error) {
	var found []string
	for _, node := range e.Nodes {
		for _, name := range names {
			out, err := docker.Script(ctx, node, fmt.Sprintf(
				`for dir in /var/lib/gpufabric /var/run/cdi /etc/cdi; do
					[ -d $dir ] || continue
					find $dir -name '*%[1]s*' 2>&1 | grep --invert-match 'No such file or directory' || true # what goes meanwhile
					grep --recursive --files-with-matches --fixed-strings '%[1]s' $dir || true
				done`, name))
			if err != nil {
				return nil, err
			}
			for _, path := range strings.Fields(out) {
				found = append(found, node+":"+path)
			}
		}
	}
	return found, nil
}

// vanish waits until list is empty. Otherwise it fails the test with the remaining objects.
func (e *environment) vanish(t *testing.T, what string, list func(ctx context.Context) ([]string, error)) {
	t.Helper()
	e.eventually(t, what+" to be gone", func(ctx context.Context) (bool, string, error) {
		left, err := list(ctx)
		return err == nil && len(left) == 0, strings.Join(left, ", "), err
	})
}

// eventually waits until look is satisfied. Otherwise it fails the test with the last result of look.
func (e *environment) eventually(t *testing.T, what string, look func(ctx context.Context) (good bool, saw string, err error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		good, saw, err := look(t.Context())
		if good {
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("waited %s for %s; last seen: %s (error: %v)", patience, what, saw, err)
			t.Log(e.state(t))
			return
		case <-time.After(interval):
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// measured prints a figure in a form that is easily found in the log.
func measured(t *testing.T, what string, took time.Duration) {
	t.Helper()
	t.Logf("measured: %s: %.1f s", what, took.Seconds())
}
