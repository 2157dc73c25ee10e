package mps_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/fakes/mps"
)

// The server that the daemon starts is this test binary, which then waits.
func TestMain(m *testing.M) {
	if os.Getenv("MPS_TEST_SERVER") != "" && len(os.Args) == 1 {
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

func daemon(t *testing.T) (pipe string, done chan error) {
	t.Helper()
	t.Setenv("MPS_TEST_SERVER", "1")
	pipe, done = t.TempDir(), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	d := &mps.Daemon{Pipe: pipe, Server: os.Args[0], Log: slog.New(slog.DiscardHandler)}
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() { cancel() })
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if mps.Send(t.Context(), pipe, strings.NewReader(""), new(bytes.Buffer)) == nil {
			return pipe, done
		}
	}
	t.Fatal("the daemon does not answer")
	return "", nil
}

func send(t *testing.T, pipe, commands string) string {
	t.Helper()
	var out bytes.Buffer
	if err := mps.Send(t.Context(), pipe, strings.NewReader(commands), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// exchanges are commands for the real daemon, and its answers.
func exchanges() []struct{ say, want string } {
	return []struct{ say, want string }{
		{"get_default_active_thread_percentage\n", "100.0\n"},
		{"set_default_active_thread_percentage 0\n", "100.0\n"},
		{"set_default_active_thread_percentage 101\n", "100.0\n"},
		{"set_default_active_thread_percentage 30\nget_default_active_thread_percentage\n", "30.0\n30.0\n"},
		{"set_default_active_thread_percentage x\n", "30.0\n"},
		{"set_default_device_pinned_mem_limit 0 10240M\nget_default_device_pinned_mem_limit 0\nget_default_device_pinned_mem_limit 1\n", "10G\n"},
		{"set_default_device_pinned_mem_limit 0 1000M\nget_default_device_pinned_mem_limit 0\n", "1000M\n"},
		{"set_default_device_pinned_mem_limit 0 2\nget_default_device_pinned_mem_limit 0\n", "2M\n"},
		{"set_default_device_pinned_mem_limit 0 1025M\nget_default_device_pinned_mem_limit 0\n", "1G\n"},
		{"set_default_device_pinned_mem_limit GPU-abc 1G\nset_default_device_pinned_mem_limit 99 1G\nget_default_device_pinned_mem_limit " +
			"99\nget_default_device_pinned_mem_limit 0\n", ""},
		{"set_default_device_pinned_mem_limit 0 0M\nget_default_device_pinned_mem_limit 0\n", ""},
		{"get_server_list\n", ""},
		{"get_server_status 12\nshutdown_server 12\nget_client_list 12\n", "Server 12 not found\nServer 12 not found\nServer 12 not found\n"},
		{"dance\n", "Unknown command \"dance\"\n"},
	}
}

// The real daemon runs where tests/nvidia-programs has fetched it; it needs no GPU.
func TestRealControlDaemonMatchesTheTable(t *testing.T) {
	directory := os.Getenv("GPUFABRIC_NVIDIA_PROGRAMS")
	if cache, err := os.UserCacheDir(); directory == "" && err == nil {
		directory = filepath.Join(cache, "gpufabric/nvidia")
	}
	found, err := filepath.Glob(filepath.Join(directory, "nvidia-cuda-mps_550*/usr/bin/nvidia-cuda-mps-control"))
	if err != nil || len(found) == 0 {
		t.Skipf("nvidia-cuda-mps_550 is not below %s: run tests/nvidia-programs (it needs apt and a Debian mirror)", directory)
	}
	pipe, log := t.TempDir(), t.TempDir()
	control := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), found[0], args...)
		cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+pipe, "CUDA_MPS_LOG_DIRECTORY="+log, "CUDA_VISIBLE_DEVICES=GPU-abc")
		return cmd
	}
	daemon := control("-f")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill() // it may have quit
		_ = daemon.Wait()         // it was killed on purpose
	})
	say := func(commands string) (string, error) {
		cmd := control()
		cmd.Stdin = strings.NewReader(commands)
		out, err := cmd.Output()
		return string(out), err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := say("get_server_list\n"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not answer")
		}
	}
	for _, c := range exchanges() {
		if got, err := say(c.say); err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.say, got, err, c.want)
		}
	}
	if _, err := say("quit -t 5\n"); err != nil {
		t.Error(err)
	}
}

func TestControlDaemonAnswersAsTheRealOne(t *testing.T) {
	pipe, done := daemon(t)
	for _, c := range exchanges() {
		if got := send(t, pipe, c.say); got != c.want {
			t.Errorf("%q: %q; want %q", c.say, got, c.want)
		}
	}
	send(t, pipe, "start_server -uid 0\n")
	pid := strings.TrimSpace(send(t, pipe, "get_server_list\n"))
	if got := send(t, pipe, "get_server_status "+pid+"\n"); got != "ACTIVE\n" {
		t.Errorf("server %q: %q", pid, got)
	}
	send(t, pipe, "shutdown_server "+pid+"\n")
	if got := send(t, pipe, "get_server_list\n"); got != "" {
		t.Errorf("after shutdown: %q", got)
	}
	send(t, pipe, "quit\n")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := mps.Send(t.Context(), pipe, strings.NewReader("get_server_list\n"), new(bytes.Buffer)); err == nil {
		t.Error("a daemon that quit answers")
	}
}

func TestControlIsInterruptible(t *testing.T) {
	pipe, _ := daemon(t)
	typed, terminal := io.Pipe()
	defer func() { _ = terminal.Close() }() // its readers end
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() { sent <- mps.Send(ctx, pipe, typed, new(bytes.Buffer)) }()
	if _, err := io.WriteString(terminal, "get_server_list\n"); err != nil { // returns when it was read
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-sent:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it reads on")
	}
}

func TestControlRefusesASecondDaemon(t *testing.T) {
	pipe, _ := daemon(t)
	d := &mps.Daemon{Pipe: pipe, Log: slog.New(slog.DiscardHandler)}
	if err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Error(err)
	}
}
