package orders

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/unixsocket"
)

// exhausted is a listener in a process that has no file descriptor left for its first connection.
type exhausted struct {
	net.Listener
	failed bool
}

func (l *exhausted) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: unix.EMFILE}
	}
	return l.Listener.Accept()
}

// served serves orders until the test ends, and returns their socket.
func served(t *testing.T, orders map[string]Order) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orders.sock")
	listener, err := unixsocket.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := serve(ctx, &exhausted{Listener: listener}, orders); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); serving.Wait() })
	return path
}

func steps(into *[]string) func(string) { return func(step string) { *into = append(*into, step) } }

func TestSendReturnsTheStepsAndTheErrorOfAnOrder(t *testing.T) {
	t.Parallel()
	path := served(t, map[string]Order{"release": func(_ context.Context, arguments url.Values, report Report) error {
		report("released %s\nof %s", "a", arguments.Get("claim"))
		report("and %s", "b")
		if arguments.Has("force") {
			return errors.Join(errors.New("first"), errors.New("second"))
		}
		return nil
	}, "drain": nil})
	for _, c := range []struct {
		order     string
		arguments url.Values
		steps     []string
		want      string
	}{
		{"release", url.Values{"claim": {"team a/train&=?"}}, []string{"released a; of team a/train&=?", "and b"}, "<nil>"},
		{"release", url.Values{"force": {"true"}}, []string{"released a; of ", "and b"}, "first; second"},
		{"dance", nil, nil, `order "dance" is unknown: allowed are drain, release`},
		{"", nil, nil, `order "" is unknown: allowed are drain, release`},
	} {
		var got []string
		err := Send(t.Context(), path, c.order, c.arguments, steps(&got))
		if fmt.Sprint(err) != c.want || !slices.Equal(got, c.steps) {
			t.Errorf("%s: %q, %v; want %q, %s", c.order, got, err, c.steps, c.want)
		}
	}
}

func TestSendReportsAnOrderThatIsTooLong(t *testing.T) {
	t.Parallel()
	path := served(t, map[string]Order{"release": func(context.Context, url.Values, Report) error { return nil }})
	if err := Send(t.Context(), path, "release", url.Values{"claim": {strings.Repeat("x", 64<<10)}}, func(string) {}); err == nil {
		t.Error("an order of 64 KiB is executed")
	}
}

func TestOrderEndsWithItsCommand(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	path := served(t, map[string]Order{"drain": func(ctx context.Context, _ url.Values, report Report) error {
		report("waiting for claim a")
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	err := Send(ctx, path, "drain", nil, func(string) { cancel() })
	if err == nil || !strings.Contains(err.Error(), "given up") || !strings.Contains(err.Error(), "waiting for claim a") {
		t.Errorf("%v", err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the order goes on without its command")
	}
}

func TestSendReportsARoleThatEndsDuringAnOrder(t *testing.T) {
	t.Parallel()
	path := served(t, map[string]Order{"drain": func(_ context.Context, _ url.Values, report Report) error {
		report("waiting")
		panic("the role is killed") // net/http closes the connection
	}})
	if err := Send(t.Context(), path, "drain", nil, func(string) {}); err == nil || !strings.Contains(err.Error(), "before it was done") {
		t.Errorf("%v", err)
	}
}

func TestSendReportsAMissingRole(t *testing.T) {
	t.Parallel()
	err := Send(t.Context(), filepath.Join(t.TempDir(), "orders.sock"), "drain", nil, func(string) {})
	if !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), "http://") {
		t.Errorf("%v", err)
	}
}

func TestServeReportsThatItCannotListen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var reported error
	Serve(ctx, filepath.Join(file, "orders.sock"), nil, func(err error) { reported = err; cancel() })
	if reported == nil {
		t.Error("no error is reported")
	}
}
