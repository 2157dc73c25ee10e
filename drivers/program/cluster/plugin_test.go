package cluster_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/program/cluster"
)

const plugin = "kubectl-gpufabric"

// TestMain makes the test's own program gpufabric where it is called by the plugin's name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == plugin {
		os.Exit(cluster.Program().Main())
	}
	os.Exit(m.Run())
}

// TestKubectlFindsTheProgramByItsPluginsName has a real kubectl run the program.
func TestKubectlFindsTheProgramByItsPluginsName(t *testing.T) {
	kubectl := apiserver.Find("kubectl", "")
	if kubectl == "" {
		t.Skip("skipped: there is no kubectl; run `make toolchain` or put it on the PATH")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	if err := os.Symlink(self, filepath.Join(directory, plugin)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"doctor", "--help"}, 0, "kubectl gpufabric doctor [pod|claim|node|domain|pool|install] [name]"},
		{[]string{"doctor", "gadget", "x"}, 1, `kubectl gpufabric doctor: "gadget" cannot be examined`},
		{[]string{"topology", "--help"}, 0, "kubectl gpufabric topology"},
	} {
		command := exec.CommandContext(t.Context(), kubectl, append([]string{"gpufabric"}, c.args...)...)
		command.Env = append(os.Environ(), "PATH="+directory+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+directory)
		out, err := command.CombinedOutput()
		status := 0
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != c.status || !strings.Contains(string(out), c.says) {
			t.Errorf("kubectl gpufabric %v: status %d\n%s", c.args, status, out)
		}
	}
}
