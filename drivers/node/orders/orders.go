// Package orders lets commands on a node give orders to its roles: gpufabric drain, undrain and release. An order is a POST request over
// HTTP, on a Unix socket that only root can use. The response has a line for each step of the order, and the order's error in a trailer,
// so a response that is cut off is not taken for a success.
package orders

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/drivers/node/httpserver"
	"gpufabric.io/drivers/node/unixsocket"
)

const (
	// connections limits the orders that a role executes at a time. One too many ends the oldest.
	connections = 16
	// listenPause is the time between two attempts to serve a socket.
	listenPause = 10 * time.Second
	// errorTrailer has the error of an order.
	errorTrailer = "Order-Error"
)

// ErrUnreachable is wrapped by the error of an order that no role takes.
var ErrUnreachable = errors.New("no role accepts orders")

// Report sends a step of an order to its command.
type Report func(format string, arguments ...any)

// Order executes an order. ctx ends when its command does.
type Order func(ctx context.Context, arguments url.Values, report Report) error

// Serve takes orders, by name, at the socket at path until ctx ends. It calls failed with the reason why none can be taken, and tries
// again after a while.
func Serve(ctx context.Context, path string, orders map[string]Order, failed func(error)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := os.MkdirAll(filepath.Dir(path), 0o750)
		var listener net.Listener
		if err == nil {
			listener, err = unixsocket.Listen(ctx, path)
		}
		if err == nil {
			err = serve(ctx, listener, orders)
		}
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
	}, listenPause)
}

// serve takes orders from a listener until ctx ends. http.Server goes on after a connection that failed, as for want of a descriptor.
func serve(ctx context.Context, listener net.Listener, orders map[string]Order) error {
	server := httpserver.Server{Handler: handler(orders), Connections: connections, PerAddress: connections, WriteTimeout: -1}
	return server.Serve(ctx, listener)
}

func handler(orders map[string]Order) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		order, known := orders[name]
		if !known || r.Method != http.MethodPost {
			fail(w, fmt.Errorf("order %.40q is unknown: allowed are %s", name, strings.Join(slices.Sorted(maps.Keys(orders)), ", ")))
			return
		}
		steps := http.NewResponseController(w)
		report := func(format string, arguments ...any) { // a command that is gone ends the order's context
			_, _ = fmt.Fprintln(w, strings.ReplaceAll(fmt.Sprintf(format, arguments...), "\n", "; "))
			_ = steps.Flush()
		}
		if err := order(r.Context(), r.URL.Query(), report); err != nil {
			fail(w, err)
		}
	})
}

func fail(w http.ResponseWriter, err error) {
	w.Header().Set(http.TrailerPrefix+errorTrailer, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// Send gives one order to the role at the socket at path, and calls report with each step of it. The error is the order's own, or
// describes why its result is unknown; it wraps ErrUnreachable where no role listens.
func Send(ctx context.Context, path, order string, arguments url.Values, report func(step string)) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := unixsocket.Dial(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		return conn, nil
	}}
	target := url.URL{Scheme: "http", Host: "role", Path: "/" + order, RawQuery: arguments.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), nil)
	if err != nil {
		return err
	}
	last := "nothing"
	response, err := transport.RoundTrip(request)
	switch {
	case errors.Is(err, ErrUnreachable):
		return err
	case err != nil:
		return interrupted(ctx, err, last)
	}
	defer func() { _ = response.Body.Close() }() // read to its end, or of no more use
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		last = lines.Text()
		report(last)
	}
	if err := lines.Err(); err != nil {
		return interrupted(ctx, err, last)
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	if text := response.Trailer.Get(errorTrailer); text != "" {
		return errors.New(text)
	}
	return nil
}

// interrupted is the error of an order whose connection ended with err.
func interrupted(ctx context.Context, err error, last string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("given up: %w; the role's last report: %s", context.Cause(ctx), last)
	}
	return fmt.Errorf("the role ended the connection before it was done: %w: read its log, and try again", err)
}
