package charts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestProgramAcceptsEveryFlagOfChart runs the program with the flags of each pod and --help. An unknown
// subcommand, an unknown flag and a value that does not parse are errors even then.
func TestProgramAcceptsEveryFlagOfChart(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program; -short does not")
	}
	program := buildProgram(t)
	guarded := everything()
	guarded["metrics"] = map[string]any{"authentication": true}
	renders := map[string][]Object{
		"the defaults":    renderValues(t, "gpufabric", nil),
		"all drivers":     renderValues(t, "gpufabric", everything()),
		"guarded metrics": renderValues(t, "gpufabric", guarded),
	}
	files, err := filepath.Glob(Dir("gpufabric/ci/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no values in charts/gpufabric/ci: %v", err)
	}
	for _, file := range files {
		renders[filepath.Base(file)] = renderFile(t, "gpufabric", "gpufabric/ci/"+filepath.Base(file))
	}
	asked := map[string]bool{} // many pods have the same flags in each rendering
	for values, objects := range renders {
		for name, pod := range pods(t, objects) {
			for _, container := range pod.Spec.Containers {
				if container.Name == "scheduler" {
					continue // kube-scheduler with our plugins is another program, with the flags of Kubernetes
				}
				flags := strings.Join(container.Args, " ")
				if asked[flags] {
					continue
				}
				asked[flags] = true
				run := program
				if len(container.Command) > 0 {
					run = filepath.Join(filepath.Dir(program), container.Command[0])
				}
				ask := exec.CommandContext(t.Context(), run, append(container.Args, "--help")...)
				ask.Env = append(os.Environ(), "NODE_NAME=node-a")
				if said, err := ask.CombinedOutput(); err != nil || !strings.Contains(string(said), filepath.Base(run)+" "+container.Args[0]) {
					t.Errorf("%s, %s: %s %s: %v\n%s", values, name, filepath.Base(run), flags, err, said)
				}
			}
		}
	}
}
