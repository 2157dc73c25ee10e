package imex

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A daemon and a control command of a few lines of shell: the tests only check how they are started, signalled and ended.
const (
	daemonScript = `#!/bin/sh
trap 'echo reloaded' USR1
trap 'exit 0' TERM
echo "started with $*"
while :; do sleep 0.01; [ -f "$(dirname "$2")/exit" ] && exit 3; done
`
	controlScript = `#!/bin/sh
cat "$(dirname "$2")/state" || { echo "no daemon" >&2; exit 1; }
`
)

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// await waits for text that the child prints; there is no other event.
func (o *output) await(t *testing.T, text string) {
	t.Helper()
	for range 24_000 { // two minutes
		o.mu.Lock()
		found := strings.Contains(o.text.String(), text)
		o.mu.Unlock()
		if found {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("the daemon never printed %q", text)
}

func startScript(t *testing.T) (Daemon, *output, string) {
	t.Helper()
	root, dir := t.TempDir(), t.TempDir()
	bin := filepath.Join(root, "usr/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{"nvidia-imex": daemonScript, "nvidia-imex-ctl": controlScript} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := &output{}
	spec, err := NewSpec(dir, filepath.Join(dir, "hosts"), "127.0.0.1", 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	programs := Programs{Daemon: filepath.Join(bin, "nvidia-imex"), Control: filepath.Join(bin, "nvidia-imex-ctl")}
	daemon, err := (&Process{Programs: programs, Output: out}).Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Stop(time.Minute) })
	out.await(t, "started with -c "+spec.ConfigFile)
	return daemon, out, dir
}

// answered is the control command's answer. It retries, since on a busy machine two seconds may not be enough.
func answered(t *testing.T, daemon Daemon) (State, error) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		state, err := daemon.State(t.Context())
		if err == nil || !strings.Contains(err.Error(), "did not answer within") || time.Now().After(deadline) {
			return state, err
		}
	}
}

func TestStateIsParsedFromControlCommand(t *testing.T) {
	t.Parallel()
	daemon, _, dir := startScript(t)
	for answer, want := range map[string]State{"READY\n": Ready, "WAITING_FOR_PEERS\n": WaitingForPeers, "READY READY\n": Unavailable,
		"": Unavailable} {
		if err := os.WriteFile(filepath.Join(dir, "state"), []byte(answer), 0o644); err != nil {
			t.Fatal(err)
		}
		if state, err := answered(t, daemon); state != want || (err == nil) != (want != Unavailable) {
			t.Errorf("%q: %s, %v; want %s", answer, state, err, want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	if state, err := answered(t, daemon); state != Unavailable || err == nil || !strings.Contains(err.Error(), "no daemon") {
		t.Errorf("a control command that fails: %s, %v", state, err)
	}
}

func TestReloadReachesTheDaemon(t *testing.T) {
	t.Parallel()
	daemon, out, _ := startScript(t)
	if err := daemon.Reload(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "reloaded")
}

func TestProcessReportsHowDaemonEnded(t *testing.T) {
	t.Parallel()
	daemon, _, dir := startScript(t)
	if err := os.WriteFile(filepath.Join(dir, "exit"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	<-daemon.Exited()
	if err := daemon.Err(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
	daemon.Stop(time.Second) // a second Stop does nothing
}

func TestStopEndsADaemonInOrder(t *testing.T) {
	t.Parallel()
	daemon, _, _ := startScript(t)
	if err := daemon.Err(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	daemon.Stop(time.Minute)
	if err := daemon.Err(); err != nil {
		t.Errorf("after Stop: %v", err)
	}
}

func TestStartNamesPathOfMissingDaemon(t *testing.T) {
	t.Parallel()
	_, err := (&Process{Programs: Programs{Daemon: "/driver/bin/nvidia-imex", Control: "/driver/bin/nvidia-imex-ctl"}}).Start(t.Context(),
		Spec{})
	if err == nil || !strings.Contains(err.Error(), "/driver/bin/nvidia-imex") || !strings.Contains(err.Error(), "driver root") {
		t.Errorf("error %v", err)
	}
}

func TestControlGivesUpOnHangingCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hanging := filepath.Join(dir, "nvidia-imex-ctl")
	if err := os.WriteFile(hanging, []byte("#!/bin/sh\nsleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	state, err := (&child{control: []string{hanging}}).State(t.Context())
	if state != Unavailable || err == nil || !strings.Contains(err.Error(), "did not answer within") ||
		time.Since(began) > 5*time.Minute {
		t.Errorf("after %s: %s, %v", time.Since(began), state, err)
	}
}
