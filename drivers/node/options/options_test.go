package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func bind(t *testing.T, env map[string]string, args ...string) Node {
	t.Helper()
	var node Node
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	node.Bind(flags, func(name string) string { return env[name] }, "gpu-plugin")
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return node
}

func TestBindPrefersFlagOverEnvironment(t *testing.T) {
	env := map[string]string{"CDI_ROOT": "/env/cdi", "NODE_NAME": "from-env"}
	node := bind(t, env, "--node-name=from-flag")
	if node.CDIRoot != "/env/cdi" || node.NodeName != "from-flag" || node.SysfsRoot != "/sys" ||
		node.StateDir != "/var/lib/gpufabric/gpu-plugin" {
		t.Errorf("%+v", node)
	}
	if err := node.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesEachWrongFlag(t *testing.T) {
	node := bind(t, nil, "--cdi-root=cdi", "--state-dir=")
	node.DriverRoot, node.DevRoot = "/,driver", "/host/dev="
	err := node.Validate()
	for _, flag := range []string{"--node-name", "--cdi-root", "--state-dir", "--driver-root", "--dev-root"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%v does not name %s", err, flag)
		}
	}
}

func TestBootIDIsReadBesideProcDevices(t *testing.T) {
	proc := t.TempDir()
	node := Node{ProcDevices: filepath.Join(proc, "devices")}
	kernel, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if id := node.BootID(); id != strings.TrimSpace(string(kernel)) {
		t.Errorf("a tree without a boot has %q, not the kernel's", id)
	}
	if err := os.MkdirAll(filepath.Join(proc, "sys/kernel/random"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, "sys/kernel/random/boot_id"), []byte("b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if id := node.BootID(); id != "b" {
		t.Errorf("got %q", id)
	}
	unreadable := Node{ProcDevices: filepath.Join(proc, "sys/kernel/random/boot_id", "devices")} // a file is no directory
	if id := unreadable.BootID(); id != "" {
		t.Errorf("one that cannot be read: %q", id)
	}
}

func TestSameBootIsFalseForUnknownID(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{{"a", "a", true}, {"a", "b", false}, {"", "", false}, {"a", "", false}, {"", "a", false}} {
		if got := SameBoot(c.a, c.b); got != c.same {
			t.Errorf("boots %q and %q are one: %t", c.a, c.b, got)
		}
	}
}
