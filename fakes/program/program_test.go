package program_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/program"
	"gpufabric.io/fakes/state"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }

// node renders with the built program, so that the driver root has tools.
func node(t *testing.T, profile string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "node")
	out, err := exec.CommandContext(t.Context(), filepath.Join(built.Dir(t), "fakefabric"), "render", "--profile", profile, "--root", root,
		"--plain-devices").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return root
}

// tool is a command of the node at root, on a machine that is that node.
func tool(t *testing.T, root, name string, args ...string) *exec.Cmd {
	command := exec.CommandContext(t.Context(), filepath.Join(root, "driver/usr/bin", name), args...)
	command.Env = append(os.Environ(), "FAKEFABRIC_DEV="+filepath.Join(root, "dev"), "FAKEFABRIC_IMEX_RUN="+filepath.Join(root, "run"))
	return command
}

func TestToolsFindTheirNode(t *testing.T) {
	a, b := node(t, "l40s-8"), node(t, "t4-edge")
	for root, want := range map[string]string{a: "GPU 7: NVIDIA L40S", b: "GPU 3: Tesla T4"} {
		if out, err := tool(t, root, "nvidia-smi", "-L").Output(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s %v", out, err)
		}
	}
	other := tool(t, a, "nvidia-smi", "-L")
	other.Env = append(os.Environ(), "FAKEFABRIC_ROOT="+b)
	if out, err := other.Output(); err != nil || !strings.Contains(string(out), "Tesla T4") {
		t.Errorf("FAKEFABRIC_ROOT: %s %v", out, err)
	}
}

func TestIMEXCommandsCommunicate(t *testing.T) {
	root := node(t, "gb200-nvl72")
	t.Run("on the node", func(t *testing.T) { imexCommandsCommunicate(t, root) })
	// NVIDIA's DRA driver gives its daemon's container the state, and no other file of the node's proc.
	alone := filepath.Join(t.TempDir(), state.PluginRoot)
	own, err := os.ReadFile(state.Path(root))
	if err := errors.Join(err, os.MkdirAll(alone, 0o755), os.WriteFile(state.Path(alone), own, 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKEFABRIC_ROOT", alone)
	t.Run("in a container with the state alone", func(t *testing.T) { imexCommandsCommunicate(t, root) })
}

func imexCommandsCommunicate(t *testing.T, root string) {
	t.Helper()
	dir := t.TempDir()
	address := fmt.Sprintf("127.77.%d.1", os.Getpid()%250)
	hosts := filepath.Join(dir, "nodes")
	config := filepath.Join(dir, "imex.cfg")
	for path, text := range map[string]string{hosts: address + "\n", config: fmt.Sprintf(
		"BIND_INTERFACE_IP=%s\nIMEX_NODE_CONFIG_FILE=%s\nIMEX_WAIT_FOR_QUORUM=RECOVERY\nIMEX_CMD_UNIX_DOMAIN_PATH=%s/socket\n", address, hosts,
		dir)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := tool(t, root, "nvidia-imex-ctl", "-c", config, "-q").Output(); err == nil || string(out) != "UNAVAILABLE\n" {
		t.Errorf("without a daemon: %q %v", out, err)
	}
	// nvidia-modprobe makes the capability's node when the driver's own service starts.
	node := filepath.Join(root, "dev/nvidia-caps/nvidia-cap4323")
	if err := errors.Join(os.MkdirAll(filepath.Dir(node), 0o755), os.WriteFile(node, nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	daemon := tool(t, root, "nvidia-imex", "-c", config)
	var log bytes.Buffer
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	query := func(args ...string) string {
		out, _ := tool(t, root, "nvidia-imex-ctl", append([]string{"-c", config}, args...)...).Output()
		return string(out)
	}
	for deadline := time.Now().Add(time.Minute); query("-q") != "READY\n"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never READY:\n%s", log.String())
		}
	}
	if got := query("-N"); !strings.Contains(got, "\nDomain State: UP\n") {
		t.Error(got)
	}
	if got := query("-N", "-j"); !strings.HasPrefix(got, `{"nodes":{"0":{"status":"READY"`) ||
		!strings.Contains(got, `"version":"580.173.02"`) {
		t.Error(got)
	}
	if err := daemon.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); query("-q") != "READY\n"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("SIGUSR1 ended it")
		}
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, log.String())
	}
	if !strings.Contains(log.String(), "resolving peers again") {
		t.Errorf("SIGUSR1 did nothing:\n%s", log.String())
	}
}

func TestCommandsFailWithASentence(t *testing.T) {
	bare := t.TempDir()
	if err := os.Mkdir(filepath.Join(bare, "bus"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"an unknown profile": {[]string{"render", "--profile", "gb300", "--root", t.TempDir()}, "there are a10, a100-40"},
		"no root":            {[]string{"render", "--profile", "t4-edge"}, `required flag(s) "root" not set`},
		"a node too many": {[]string{"render", "--profile", "t4-edge", "--root", t.TempDir(), "--no-libraries", "--node", "999999999999"},
			"node 999999999999 of profile t4-edge: 0 to 1048575 are allowed"},
		"a node below 0": {[]string{"render", "--profile", "t4-edge", "--root", t.TempDir(), "--no-libraries", "--node", "-1"},
			"node -1 of profile t4-edge: 0 to 1048575 are allowed"},
		"too many nodes": {[]string{"render", "--profile", "t4-edge", "--root", t.TempDir(), "--no-libraries", "--nodes", "1048577"},
			"1048577 nodes of profile t4-edge: 1 to 1048576 are allowed"},
		"an endless profile":  {[]string{"validate", endless(t, "profile.yaml")}, "profiles with mistakes: 1"},
		"an endless scenario": {[]string{"play", "--root", t.TempDir(), endless(t, "scenario.yaml")}, "more than the 4 MiB that are allowed"},
		"an endless report":   {[]string{"record", "--sysfs", bare, "--xml", endless(t, "report.xml")}, "more than the 16 MiB that are allowed"},
		"an endless trace":    {[]string{"trace", endless(t, "trace")}, "token too long; give the file that FAKEFABRIC_TRACE named"},
		"an empty report":     {[]string{"record", "--sysfs", bare, "--xml", os.DevNull}, os.DevNull + " is empty"},
		"no libraries":        {[]string{"render", "--profile", "t4-edge", "--root", t.TempDir(), "--library-dir", "/nowhere"}, "make -C fakes"},
		"no node to change":   {[]string{"inject", "--root", t.TempDir(), "xid", "gpu=0", "code=79"}, "no fake node at"},
		"an argument alone":   {[]string{"inject", "--root", t.TempDir(), "xid", "gpu"}, "want name=value"},
		"an agent outside": {[]string{"agent", "--node-name", "a", "--library-dir", filepath.Join(built.Dir(t), "lib")},
			"the agent runs in a pod"},
		"no event":          {[]string{"inject", "--root", t.TempDir()}, "takes an event and its arguments"},
		"an argument twice": {[]string{"inject", "--root", t.TempDir(), "xid", "gpu=0", "gpu=1", "code=79"}, `gpu is "0" already`},
		"no scenario":       {[]string{"play", "--root", t.TempDir()}, "takes one scenario file"},
		"a speed below 0":   {[]string{"play", "--root", t.TempDir(), "--speed", "-1", "scenario.yaml"}, "--speed is -1"},
		"nothing to check":  {[]string{"validate"}, "takes profile files"},
		"no trace":          {[]string{"trace", "--summary"}, "FAKEFABRIC_TRACE"},
		"an unknown flag":   {[]string{"render", "--colour"}, "see fakefabric render --help"},
		"a profile as a word": {[]string{"render", "t4-edge", "--profile", "t4-edge", "--root", t.TempDir()},
			`takes only flags, not "t4-edge"`},
		"no trace at all":      {[]string{"trace", "program_test.go"}, "program_test.go is not a trace"},
		"no sysfs":             {[]string{"record", "--nvidia-smi=", "--sysfs", t.TempDir()}, "is not a sysfs"},
		"too little to record": {[]string{"record", "--nvidia-smi=", "--sysfs", bare}, "host.numa: is missing"},
		"no nvidia-smi to ask": {[]string{"record", "--nvidia-smi", "/nowhere/nvidia-smi"}, "give --xml a file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			var out, stderr bytes.Buffer
			if code := program.Run(context.WithoutCancel(t.Context()), "fakefabric", c.args, &out, &stderr); code == 0 ||
				!strings.Contains(stderr.String(), c.want) {
				t.Errorf("%d: %s", code, stderr.String())
			}
		})
	}
}

// endless is a link to a device that can be read for ever.
func endless(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// full is a writer whose writes fail.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestCommandFailsWhenItsAnswerIsLost(t *testing.T) {
	for _, args := range [][]string{{"profiles"}, {"schema"}, {"validate", "t4-edge"},
		{"render", "--profile", "t4-edge", "--root", filepath.Join(t.TempDir(), "node"), "--no-libraries", "--plain-devices"}} {
		var stderr bytes.Buffer
		if code := program.Run(t.Context(), "fakefabric", args, full{}, &stderr); code == 0 ||
			!strings.Contains(stderr.String(), syscall.ENOSPC.Error()) {
			t.Errorf("%q: %d %s", args, code, stderr.String())
		}
	}
}

func TestToolPrintsAMistakeOnce(t *testing.T) {
	for name, flag := range map[string]string{"nvidia-imex": "-c string", "nvidia-imex-ctl": "-c string", "nvidia-cuda-mps-control": "-d\t"} {
		var out, stderr bytes.Buffer
		if code := program.Run(t.Context(), name, []string{"-h"}, &out, &stderr); code != 0 || !strings.Contains(out.String(), flag) ||
			stderr.Len() > 0 {
			t.Errorf("%s -h: %d %q %q", name, code, out.String(), stderr.String())
		}
		out.Reset()
		want := name + ": flag provided but not defined: -colour; see " + name + " -h\n"
		if code := program.Run(t.Context(), name, []string{"-colour"}, &out, &stderr); code == 0 || stderr.String() != want || out.Len() > 0 {
			t.Errorf("%s -colour: %d %q %q, want %q", name, code, out.String(), stderr.String(), want)
		}
	}
}

func TestValidateNamesEveryMistakeOfEveryFile(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("name: x\ncolour: green\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	if code := program.Run(t.Context(), "fakefabric", []string{"validate", bad, "../profiles/t4-edge.yaml"}, &out, &stderr); code == 0 {
		t.Error("no failure")
	}
	for _, want := range []string{"bad.yaml:2: colour: unknown key", "bad.yaml:1: summary: is missing", "bad.yaml:1: host: is missing",
		"t4-edge.yaml: valid"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}
