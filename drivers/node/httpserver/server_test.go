package httpserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2/textlogger"
)

// start serves on the loopback until the test ends.
func start(t *testing.T, ctx context.Context, server Server) string { //nolint:revive // a test's first parameter is t
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return listener.Addr().String()
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })

// dial connects from an address of the loopback.
func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil { // for a slow machine
		t.Fatal(err)
	}
	return c
}

const healthz = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

func get(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, healthz); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
}

func TestServerClosesOldestConnectionOfAddressWithTooMany(t *testing.T) {
	address := start(t, t.Context(), Server{Handler: ok, Connections: 8, PerAddress: 4})
	for range Reserve { // these connections are all of the machine itself, which has places of its own
		get(t, dial(t, "127.0.0.9", address))
	}
	other := dial(t, "127.0.0.2", address)
	get(t, other)
	first := dial(t, "127.0.0.3", address)
	get(t, first)
	for range 4 {
		get(t, dial(t, "127.0.0.3", address))
	}
	if _, err := io.ReadAll(first); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the fifth connection of an address does not close its first one")
	}
	get(t, other)
	last := dial(t, "127.0.0.4", address)
	for range 4 {
		get(t, dial(t, "127.0.0.5", address))
	}
	get(t, last)
	get(t, other)
}

func TestServerRecognizesConnectionsOfNode(t *testing.T) {
	routes := filepath.Join(t.TempDir(), "route")
	table := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n" +
		"eth0\t00000000\t0101F40A\t0003\t0\t0\t0\t00000000\neth0\t0001F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\nbroken\n"
	if err := os.WriteFile(routes, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	node := nodeAddresses(routes)
	for _, c := range []struct {
		remote, local string
		want          bool
	}{
		{"10.244.1.1", "10.244.1.7", true}, {"10.244.1.9", "10.244.1.7", false}, {"192.168.0.4", "192.168.0.4", true},
		{"127.0.0.1", "127.0.0.1", true}, {"::1", "::1", true},
	} {
		if got := node(netip.MustParseAddr(c.remote), netip.MustParseAddr(c.local)); got != c.want {
			t.Errorf("%s to %s: of the node %t, want %t", c.remote, c.local, got, c.want)
		}
	}
	if node(netip.Addr{}, netip.Addr{}) {
		t.Error("a Unix socket's caller counts as the node")
	}
}

func TestServerReadsBodyWithinLimits(t *testing.T) {
	read := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-r.Context().Done():
			t.Error("the deadline of the body ends the answer")
		case <-time.After(10 * time.Millisecond):
		}
		fmt.Fprintln(w, "ok")
	})
	address := "http://" + start(t, t.Context(), Server{Handler: read, MaxBody: 1 << 10})
	for size, want := range map[int]int{10: http.StatusOK, 1 << 10: http.StatusOK, 1<<10 + 1: http.StatusBadRequest} {
		answer, err := http.Post(address, "text/plain", strings.NewReader(strings.Repeat("x", size))) //nolint:noctx // the server ends
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("a body of %d bytes: %d, want %d", size, answer.StatusCode, want)
		}
	}
	held := memory{byHost: map[string]int64{}}
	if !held.take("a", bodiesPerAddress) || held.take("a", 1) || !held.take("b", bodiesPerAddress) || !held.take("c", bodiesPerAddress-1) ||
		held.take("d", 1) {
		t.Errorf("bodies in memory: %+v", &held)
	}
	held.take("a", -bodiesPerAddress-1)
	if !held.take("d", 1) || len(held.byHost) != 3 {
		t.Errorf("after the release: %+v", &held)
	}
}

// Each plain connection to a TLS port was a line of the log.
func TestServerLogsFewLinesOfFailedHandshakes(t *testing.T) {
	const connections = 2000
	var log strings.Builder
	now := time.Now()
	l := &lines{to: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), now: func() time.Time { return now }}
	for range connections {
		if _, err := l.Write([]byte("http: TLS handshake error from 10.0.0.1:1: " + strings.Repeat("x", 4000) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(linePause)
	_, _ = l.Write([]byte("http: the last\n"))
	if got := strings.Count(log.String(), "\n"); got != linesAtOnce+1 || log.Len() > (linesAtOnce+1)*(longestLine+200) {
		t.Errorf("%d connections write %d lines, %d bytes", connections, got, log.Len())
	}
	if want := fmt.Sprintf("linesLeftOut=%d", connections-linesAtOnce); !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %s:\n%s", want, log.String())
	}
	t.Logf("attacker sees: nothing; %d connections write %d lines", connections, linesAtOnce)
}

func TestTokenReviewsStoreFewAddresses(t *testing.T) {
	var reviews TokenReviews
	now := time.Now()
	for i := range 2 * mostAddresses {
		reviews.Allow(fmt.Sprintf("[fd00::%x]:1", i), now)
	}
	if len(reviews.byHost) > mostAddresses {
		t.Errorf("%d addresses are stored", len(reviews.byHost))
	}
}
