package action_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// stubs puts programs in the place of kind, kubectl and helm that log their arguments, and the configuration that they read, in a file.
// clusters are those that kind lists; workers and nodes are those that kubectl lists.
func stubs(t *testing.T, clusters string, workers, nodes []string) (path, log string) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	for name, script := range map[string]string{
		"kind": "case \"$1\" in get) echo " + clusters + ";; create) cat >> '" + log + "';; esac",
		"kubectl": "case \"$*\" in *'!node-role'*) printf '%s\\n' " + strings.Join(workers, " ") + ";; *'get nodes'*) printf '%s\\n' " +
			strings.Join(nodes, " ") + ";; esac | sed '/^$/d'",
		"helm": "true",
	} {
		content := "#!/bin/bash\necho \"" + name + " $*\" >> '" + log + "'\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir + ":/usr/bin:/bin", log
}

func run(t *testing.T, path string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./fabric-cluster")
	cmd.Env = slices.Concat(env, []string{"PATH=" + path})
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestFabricClusterLabelsEachWorkerAsANodeOfOneFabric(t *testing.T) {
	create := "kind create cluster --name fabric --config - --wait 5m"
	for name, c := range map[string]struct {
		clusters       string
		workers, nodes []string
		made           bool
		want           []string
	}{
		"a new cluster":     {"other", []string{"node/a", "node/b"}, []string{"node/c", "node/a", "node/b"}, true, []string{"a", "b"}},
		"one that is there": {"fabric", []string{"node/a"}, []string{"node/c", "node/a"}, false, []string{"a"}},
		"its only node":     {"fabric", nil, []string{"node/c"}, false, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			path, log := stubs(t, c.clusters, c.workers, c.nodes)
			if out, err := run(t, path, "PROFILE=gb200-nvl72", "NODES=2", "VERSION=0.1.0"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			content, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			done := strings.Split(string(content), "\n")
			if made := slices.Contains(done, create); made != c.made {
				t.Errorf("made %v; want %v:\n%s", made, c.made, content)
			}
			if workers := strings.Count(string(content), "- role: worker\n"); c.made && workers != 2 {
				t.Errorf("made with %d workers; want 2:\n%s", workers, content)
			}
			for index, node := range c.want {
				want := "kubectl --context kind-fabric label --overwrite node/" + node + " fakefabric.gpufabric.io/profile=gb200-nvl72 " +
					"fakefabric.gpufabric.io/index=" + string(rune('0'+index)) + " fakefabric.gpufabric.io/nodes=" + string(rune('0'+len(c.want)))
				if !slices.Contains(done, want) {
					t.Errorf("not done: %s\n%s", want, content)
				}
			}
			const install = "helm upgrade --install fake-hardware oci://ghcr.io/gpufabric/charts/fake-hardware --version 0.1.0 "
			if !strings.Contains(string(content), install) {
				t.Errorf("the chart is not installed:\n%s", content)
			}
		})
	}
}

func TestFabricClusterRefusesInputBeforeItDoesAnything(t *testing.T) {
	for name, c := range map[string]struct{ env, want string }{
		"no profile":             {"PROFILE=", "fakefabric profiles"},
		"a profile of commands":  {"PROFILE=a;touch b", "fakefabric profiles"},
		"no node":                {"NODES=0", "1 to 36"},
		"more than a rack's":     {"NODES=37", "1 to 36"},
		"a cluster as an option": {"CLUSTER=--config", "letters of a to z"},
	} {
		t.Run(name, func(t *testing.T) {
			path, log := stubs(t, "fabric", []string{"node/a"}, nil)
			out, err := run(t, path, "PROFILE=t4", c.env)
			if err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v: %s; want %q in it", err, out, c.want)
			}
			if content, err := os.ReadFile(log); err == nil {
				t.Errorf("done: %s", content)
			}
		})
	}
}

// The action gives each of its inputs to the script, and the script reads no other.
func TestActionGivesItsInputsToTheScript(t *testing.T) {
	content, err := os.ReadFile("action.yml")
	if err != nil {
		t.Fatal(err)
	}
	var action struct {
		Inputs map[string]any
		Runs   struct {
			Steps []struct {
				Run string
				Env map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(content, &action); err != nil {
		t.Fatal(err)
	}
	if len(action.Runs.Steps) != 1 || action.Runs.Steps[0].Run != `"$GITHUB_ACTION_PATH/fabric-cluster"` {
		t.Fatalf("steps %+v", action.Runs.Steps)
	}
	script, err := os.ReadFile("fabric-cluster")
	if err != nil {
		t.Fatal(err)
	}
	for name := range action.Inputs {
		variable := strings.ToUpper(name)
		if action.Runs.Steps[0].Env[variable] != "${{ inputs."+name+" }}" || !strings.Contains(string(script), "${"+variable) {
			t.Errorf("input %s does not reach the script", name)
		}
	}
	if len(action.Runs.Steps[0].Env) != len(action.Inputs) {
		t.Errorf("environment %v; inputs %v", action.Runs.Steps[0].Env, action.Inputs)
	}
}
