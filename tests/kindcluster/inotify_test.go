package kindcluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/steps"
)

func TestClusterHasEnoughInotifyInstances(t *testing.T) {
	for name, test := range map[string]struct{ before, after, says string }{
		"the kernel's own number":   {"128\n", "512", "it was 128"},
		"more than is needed":       {"8192\n", "8192\n", ""},
		"Docker in its own machine": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "max_user_instances")
			if test.before != "" {
				if err := os.WriteFile(file, []byte(test.before), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var said bytes.Buffer
			if err := (inotify{steps.NewPrinter(&said), file}).Execute(t.Context()); err != nil {
				t.Fatal(err)
			}
			if test.before == "" {
				return
			}
			after, err := os.ReadFile(file)
			if err != nil || string(after) != test.after {
				t.Errorf("the file says %q (%v), want %q", after, err, test.after)
			}
			if !strings.Contains(said.String(), test.says) || test.says == "" && said.Len() > 0 {
				t.Errorf("said %q, want %q", said.String(), test.says)
			}
		})
	}
}
