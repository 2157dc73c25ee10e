package role_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/tests/simcluster/role"
)

func TestOnceReplacesPlacesOfTheCluster(t *testing.T) {
	var out bytes.Buffer
	r := role.Role{Cluster: "/tmp/c", Output: &out, Command: []string{"sh", "-c", `echo "$0 $1 $2 $KUBECONFIG"`, "{kubeconfig}", "{cluster}",
		`{"json": {kept}}`}}
	if err := r.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := `/tmp/c/kubeconfig /tmp/c {"json": {kept}} /tmp/c/kubeconfig` + "\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestRoleReportsACommandThatCannotRun(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		command []string
		want    string
	}{
		"nothing":                     {nil, "after --"},
		"a program that is not there": {[]string{"no-such-scheduler"}, "no-such-scheduler"},
		"a file that is no program":   {[]string{plain}, "permission denied"},
		"a place of a node":           {[]string{"true", "--sysfs={hardware}/sys"}, "--each-node"},
		"an exit status":              {[]string{"sh", "-c", "exit 3"}, "exit status 3"},
	} {
		r := role.Role{Cluster: "/tmp/c", Command: c.command, Output: &bytes.Buffer{}}
		if err := r.Once(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, c.want)
		}
	}
	r := role.Role{Cluster: "/tmp/c", Command: []string{"no-such-plugin"}, Output: &bytes.Buffer{}}
	if err := r.OnEachNode(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no-such-plugin") {
		t.Errorf("on each node: %v", err)
	}
}
