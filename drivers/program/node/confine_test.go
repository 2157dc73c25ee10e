package node

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/node/seccomp"
	"gpufabric.io/drivers/node/seccomp/seccomptest"
	"gpufabric.io/drivers/program"
)

// confined makes the test program confine itself as a role, and try what an attacker would who controls the role.
const confined = "confined-as"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == confined {
		os.Exit(asConfined())
	}
	os.Exit(m.Run())
}

func asConfined() int {
	if err := Confine(os.Args[2:]...); err != nil {
		return program.Status(os.Stderr, err)
	}
	seccomptest.Attempts(os.Stdout)
	return 0
}

// privileged are the roles of which the chart's values report why they are privileged.
func privileged(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile("../../../charts/gpufabric/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(content), "Privileged roles")
	list, _, _ = strings.Cut(list, "\n  privileged:")
	var roles []string
	for _, found := range regexp.MustCompile(`(?m)^  #   ([a-z-]+) +\S`).FindAllStringSubmatch(list, -1) {
		roles = append(roles, found[1])
	}
	if len(roles) < 3 {
		t.Fatalf("the chart's values name %v", roles)
	}
	return roles
}

func TestPrivilegedRolesApplyTheirSeccompFilter(t *testing.T) {
	if filtered, err := seccomp.Filtered(); filtered || err != nil {
		t.Skipf("a filter of somebody's holds this process already (%t), or the kernel has none: %v", filtered, err)
	}
	for _, role := range privileged(t) {
		out, err := exec.CommandContext(t.Context(), "/proc/self/exe", confined, role).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", role, err, out)
		}
		t.Logf("attacker sees of %s: %s", role, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", ", "))
		// Each of these is something that a role needs.
		needed := []string{"mount=", "clone of mounts=", "setns="}
		for _, line := range strings.Split(seccomptest.Refused, "\n") {
			name, _, _ := strings.Cut(line, "=")
			if !slices.Contains(needed, name+"=") && !strings.Contains("\n"+string(out), "\n"+line+"\n") {
				t.Errorf("%s: the kernel answers\n%s\nwant %s", role, out, line)
			}
		}
	}
	out, err := exec.CommandContext(t.Context(), "/proc/self/exe", confined, "compute-domain-plugin").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != seccomptest.Refused {
		t.Errorf("compute-domain-plugin, which mounts nothing: %v\n%s", err, out)
	}
}
