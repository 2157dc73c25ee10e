package program_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestSchedulerGrowsLessThan32MiBUnder20000Connections floods the port of a scheduler process without any API server: kube-scheduler
// serves before it has its caches.
func TestSchedulerGrowsLessThan32MiBUnder20000Connections(t *testing.T) {
	port, pid := serveAlone(t)
	// Another address than the prober's.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}
	before := resident(t, pid)
	var open []net.Conn
	for range 20_000 {
		c, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
		must(t, err)
		if open = append(open, c); len(open) > 8000 { // a process may have few descriptors
			_ = open[0].Close()
			open = open[1:]
		}
	}
	if err := probeScheduler(t.Context(), port); err != nil {
		t.Errorf("/livez during the flood: %v", err)
	}
	const most = 32 << 10
	after := resident(t, pid)
	if after-before > most {
		t.Errorf("resident memory grows from %d to %d KiB", before, after)
	}
	// Of 8,000 connections the server keeps its 16 of one address and the node's 16: the others have ended.
	ended := 0
	for _, c := range open {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !os.IsTimeout(err) {
			ended++
		}
		_ = c.Close()
	}
	if kept := len(open) - ended; kept > 64 {
		t.Errorf("%d connections of one address are open, want at most 64", kept)
	}
	t.Logf("attacker sees: the end of %d of its last %d connections; %d to %d KiB resident", ended, len(open), before, after)
}

// serveAlone starts a scheduler process whose API server does not exist, and returns its port and process once it serves.
func serveAlone(t *testing.T) (port string, pid int) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "none",
"clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
"contexts": [{"name": "none", "context": {"cluster": "none"}}]}`), 0o600))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	_, port, err = net.SplitHostPort(listener.Addr().String())
	must(t, err)
	must(t, listener.Close())
	self, err := os.Executable()
	must(t, err)
	scheduler := exec.CommandContext(t.Context(), self, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
		"--secure-port="+port, "--cert-dir="+dir)
	scheduler.Env = append(os.Environ(), asScheduler+"=1")
	var output strings.Builder
	scheduler.Stdout, scheduler.Stderr = &output, &output
	must(t, scheduler.Start())
	ended := make(chan error, 1)
	go func() { ended <- scheduler.Wait() }()
	t.Cleanup(func() {
		_ = scheduler.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("the scheduler's output:\n%.4000s", output.String())
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) { // a process has no event for its port
		err := probeScheduler(t.Context(), port)
		if err == nil {
			return port, scheduler.Process.Pid
		}
		if time.Now().After(deadline) {
			t.Fatalf("the scheduler does not serve: %v", err)
		}
	}
}

func probeScheduler(ctx context.Context, port string) error {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // as the kubelet's probes do
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+port+"/livez", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // read only
	if answer.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("status %d: %s", answer.StatusCode, body)
	}
	return nil
}

// resident is the resident memory of a process in KiB (proc_pid_status(5)).
func resident(t *testing.T, pid int) int {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	defer file.Close() //nolint:errcheck // read only
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			size, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(value, "kB")))
			must(t, err)
			return size
		}
	}
	t.Fatal("the kernel does not give the process's memory")
	return 0
}
