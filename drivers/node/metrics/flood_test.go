package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const flooded = "GPUFABRIC_TEST_FLOODED" // the address at which the test's own program serves

// mostGrown is the KiB by which the server may grow. The race detector's shadow of the heap is not the server's.
func mostGrown() int {
	const grown = 32 << 10
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 6 * grown
	}
	return grown
}

// TestMain serves metrics instead of running tests on a test's request: its memory is then the server's alone.
func TestMain(m *testing.M) {
	address := os.Getenv(flooded)
	if address == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := Serve(ctx, address, New("flooded").Registry, nil)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// 20,000 connections of one address, each kept open by the caller, take less than 32 MiB of a role, and its probe is still answered.
func TestServeGrowsLessThan32MiBUnder20000Connections(t *testing.T) {
	address := freeAddress(t)
	server := exec.CommandContext(t.Context(), os.Args[0])
	server.Env = append(os.Environ(), flooded+"="+address)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	probe := func() error {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute} // for a slow machine
		answer, err := client.Get("http://" + address + "/healthz")                                      //nolint:noctx // it has a timeout
		if err != nil {
			return err
		}
		defer answer.Body.Close() //nolint:errcheck // read only
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", answer.StatusCode)
		}
		return nil
	}
	for deadline := time.Now().Add(time.Minute); probe() != nil; time.Sleep(10 * time.Millisecond) { // a process has no event for its port
		if time.Now().After(deadline) {
			t.Fatal("the server does not serve")
		}
	}
	for _, c := range []struct {
		name, head  string
		connections int
	}{
		{"idle after an answer", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 20_000},
		{"a body that never comes", "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", 2000},
		{"half a header", "GET /metrics HTTP/1.1\r\nHo", 2000},
		{"scrapes", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, _ := memory(t, server.Process.Pid)
			open := flood(t, address, c.head, c.connections)
			if err := probe(); err != nil {
				t.Errorf("/healthz during the flood: %v", err)
			}
			_, most := memory(t, server.Process.Pid)
			if most-before > mostGrown() {
				t.Errorf("resident memory grows from %d to %d KiB", before, most)
			}
			t.Logf("attacker sees: the end of its connections; %d to %d KiB resident", before, most)
			for _, c := range open {
				_ = c.Close()
			}
		})
	}
}

// flood opens connections, of which it keeps the last 8,000: a process may have few descriptors.
func flood(t *testing.T, address, head string, connections int) []net.Conn {
	t.Helper()
	var open []net.Conn
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}
	for range connections {
		c, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, head); err != nil && !errors.Is(err, net.ErrClosed) && !isReset(err) {
			t.Fatal(err)
		}
		if open = append(open, c); len(open) > 8000 {
			_ = open[0].Close()
			open = open[1:]
		}
	}
	return open
}

func isReset(err error) bool {
	return strings.Contains(err.Error(), "reset by peer") || strings.Contains(err.Error(), "broken pipe")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it only chose a port
	return l.Addr().String()
}

// memory is the resident memory of a process, and the most that it had, in KiB (proc_pid_status(5)).
func memory(t *testing.T, pid int) (now, most int) {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // read only
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch value, _ := strconv.Atoi(fields[1]); fields[0] {
		case "VmRSS:":
			now = value
		case "VmHWM:":
			most = value
		}
	}
	if now == 0 || most == 0 {
		t.Fatal("the kernel does not give the process's memory")
	}
	return now, most
}
