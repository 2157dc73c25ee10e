package program_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/program"
)

func TestObjectsRunsTheProgramWithItsArguments(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	script := "#!/bin/sh\necho \"$@\"\nexit 3\n"
	for name, want := range map[string]string{"fakefabric-objects": "--nodes 2 -h\n", "simcluster": "torture --nodes 2 -h\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		command := map[string]string{"fakefabric-objects": "objects", "simcluster": "torture"}[name]
		var out, complaint bytes.Buffer
		status := program.Run(t.Context(), "fakefabric", []string{command, "--nodes", "2", "-h"}, &out, &complaint)
		if status != 3 || out.String() != want || complaint.Len() > 0 {
			t.Errorf("%s: status %d, %q, %q; want 3 and %q", command, status, out.String(), complaint.String(), want)
		}
	}
}

func TestObjectsNamesTheProgramThatIsMissing(t *testing.T) {
	// Far from the checkout, whose bin may have it.
	far := filepath.Join(t.TempDir(), "fakefabric")
	data, err := os.ReadFile(filepath.Join(built.Dir(t), "fakefabric"))
	if err == nil {
		err = os.WriteFile(far, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), far, "objects", "--profile", "t4")
	command.Env = []string{"PATH=" + t.TempDir()}
	if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), "make build-fakefabric-objects") {
		t.Errorf("%v: %s", err, out)
	}
}
