package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// patience bounds the wait for a peer. On an idle machine a peer takes a second.
const patience = 5 * time.Minute

// child names the library through which this test binary reads a node instead of running tests. It prints the answer as JSON.
const child = "CONFORMANCE_CHILD"

func TestMain(m *testing.M) {
	if library := os.Getenv(child); library != "" {
		answer, err := map[string]func() (any, error){"go-nvml": askNVML, "rdmamap": askRDMAMap, "pci": readPCI}[library]()
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(answer)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// node is a fake machine.
type node struct {
	*profile.Node
	root string
}

// newNode renders the second node of a profile's cluster, with libraries and commands.
func newNode(t *testing.T, name string) *node {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return renderNode(t, p)
}

// renderNode is newNode with a profile that a test has changed.
func renderNode(t *testing.T, p *profile.Profile, change ...func(*tree.Options)) *node {
	t.Helper()
	checkout, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	// Not below /dev, which the namespace hides. The path is short, because of Unix sockets.
	root, err := os.MkdirTemp("/tmp", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	build := filepath.Join(checkout, "fakes/build")
	o := tree.Options{Profile: p, Node: 1, Root: root, LibraryDir: filepath.Join(build, "lib"), Tools: filepath.Join(build, "fakefabric")}
	for _, each := range change {
		each(&o)
	}
	if err := tree.Render(t.Context(), o); err != nil {
		t.Fatalf("%v (`make fakes` builds the libraries)", err)
	}
	return &node{Node: p.Node(1), root: root}
}

// withGPUs are the profiles of machines with GPUs.
func withGPUs(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, name := range profile.Names() {
		p, err := profile.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.GPUs != nil {
			names = append(names, name)
		}
	}
	return names
}

// peer gives a peer's program.
func peer(t *testing.T, name string) string {
	t.Helper()
	paths, err := toolchain.Ensure(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return paths[name]
}

// namespaces reports whether this user may make a mount namespace. It tries once.
var namespaces = sync.OnceValue(func() error {
	said, err := exec.Command("unshare", "-Urm", "true").CombinedOutput()
	if err != nil {
		return fmt.Errorf("unshare -Urm: %w: %s", err, bytes.TrimSpace(said))
	}
	return nil
})

// command is a program inside the node; it ends with the context.
func (n *node) command(ctx context.Context, t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	if err := namespaces(); err != nil {
		t.Skipf("skipped: peers look for hardware at fixed paths, and this user may not make a mount namespace: %v", err)
	}
	script, err := filepath.Abs("enter.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"-Urm", script, n.root, program}, args...)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(n.root, "driver/usr/lib64"), "NODE_NAME="+n.Hostname)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that is killed takes its programs with it
	return cmd
}

// run runs a program to its end and returns its standard output and standard error.
func (n *node) run(t *testing.T, program string, args ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := n.command(ctx, t, program, args...)
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out.String(), complaint.String())
	}
	return out.String(), complaint.String()
}

// start runs a program until the test ends. Its output is shown if the test fails.
func (n *node) start(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := n.command(ctx, t, program, args...)
	cmd.Env = append(cmd.Env, env...)
	said := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("%s ended (%v) and said:\n%s", filepath.Base(program), err, said)
		}
	})
}

// ask runs this test binary as the given child inside the node.
func ask[T any](t *testing.T, n *node, library string) T {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := n.command(ctx, t, self)
	cmd.Env = append(cmd.Env, child+"="+library)
	var answer T
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &answer)
	}
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s: %v\n%s", library, err, out)
	}
	return answer
}

// toldMiB is the memory that NVML reports for a GPU, in MiB. It reports none for an integrated GPU, which uses the machine's
// memory.
func toldMiB(m profile.GPUModel) int64 {
	if m.Integrated {
		return 0
	}
	return m.MemoryMiB
}

// inMiB is the memory that NVML reports for a GPU in a program's form, or the program's words for a GPU that reports none.
func inMiB(m profile.GPUModel, form, untold string) string {
	if m.Integrated {
		return untold
	}
	return fmt.Sprintf(form, m.MemoryMiB)
}
