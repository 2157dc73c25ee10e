package node

import (
	"os/exec"
	"strings"
	"testing"
)

// TestProgramDoesNotLinkClusterRoles checks the reason for a program of its own: each of these is memory of every role on every node.
func TestProgramDoesNotLinkClusterRoles(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../cmd/gpufabric-node").Output()
	if err != nil {
		t.Fatal(err)
	}
	for imported := range strings.Lines(string(out)) {
		imported = strings.TrimSpace(imported)
		for _, of := range []string{"gpufabric.io/drivers/controllers", "gpufabric.io/drivers/doctor", "gpufabric.io/drivers/fabric",
			"gpufabric.io/drivers/webhook", "gpufabric.io/drivers/uninstall", "github.com/google/cel-go", "sigs.k8s.io/controller-runtime"} {
			if imported == of || strings.HasPrefix(imported, of+"/") {
				t.Errorf("gpufabric-node links %s", imported)
			}
		}
	}
}
