// Package httpserver serves HTTP for every role. One listener takes a bounded number of connections, in all and from one address, bounded
// headers and bodies, for a bounded time, and writes a bounded number of lines to the log. Callers need no token for any of that, so
// none of it can be left to authentication.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"k8s.io/klog/v2"
)

const (
	// Connections is the default number of open connections: a role is scraped by a few Prometheus servers. A connection with TLS takes
	// about 60 KiB of the process.
	Connections = 128
	// PerAddress is the default number of open connections of one address.
	PerAddress = 32
	// Reserve is the number of connections of the node itself, such as the kubelet's probes, that do not count among the others.
	Reserve = 16

	headerTimeout = 5 * time.Second
	bodyTimeout   = 5 * time.Second
	// noBodyTimeout limits the time in which the rest of a request is read that has a body and should have none.
	noBodyTimeout = time.Second
	idleTimeout   = 2 * time.Minute
	writeTimeout  = 30 * time.Second
	// grace is the time for requests in progress when a server ends.
	grace = 3 * time.Second
	// maxHeader holds a token of 16 KiB. That of a service account has about 1 KiB.
	maxHeader = 32 << 10
	// maxStreams limits the requests of one HTTP/2 connection.
	maxStreams = 64
)

// Server is one listener's. The zero value but for the Handler serves GET requests of a role.
type Server struct {
	Handler http.Handler
	// TLS is used for each connection; nil: none. HTTP/2 is offered where NextProtos has it.
	TLS *tls.Config
	// Connections and PerAddress limit the open connections; 0: the defaults. One connection too many closes the oldest of its address, or
	// of the address that has most.
	Connections, PerAddress int
	// WriteTimeout limits the time from a request's header to the end of its answer; 0: 30 s, negative: no limit. A handler may set another
	// deadline for its own answer (http.ResponseController).
	WriteTimeout time.Duration
	// MaxBody is the size in bytes up to which a request's body can be read; 0: the handlers read none, and a connection on which one
	// comes is closed after the answer.
	MaxBody int64
	// Routes is the file that lists the machine's routes; empty: /proc/net/route.
	Routes string
}

// Serve serves until ctx ends, which ends the contexts of requests too. It closes the listener. Its error is nil only after ctx ended.
func (s Server) Serve(ctx context.Context, listener net.Listener) error {
	base, cancel := context.WithCancel(ctx)
	defer cancel()
	limited := limit(listener, orDefault(s.Connections, Connections), orDefault(s.PerAddress, PerAddress), s.Routes)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(s.TLS != nil && slices.Contains(s.TLS.NextProtos, "h2"))
	server := &http.Server{
		Protocols:         &protocols,
		Handler:           s.bodies(s.Handler),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		WriteTimeout:      orDefault(s.WriteTimeout, writeTimeout),
		MaxHeaderBytes:    maxHeader,
		TLSConfig:         s.TLS,
		ErrorLog:          errorLog(klog.FromContext(ctx)),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: 1 << 20},
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	ended := make(chan error, 1)
	go func() {
		if s.TLS != nil {
			ended <- server.ServeTLS(limited, "", "")
			return
		}
		ended <- server.Serve(limited)
	}()
	select {
	case err := <-ended:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer stop()
	if server.Shutdown(end) != nil {
		_ = server.Close() // requests that do not end; the role ends anyway
	}
	<-ended
	return nil
}

func orDefault[N int | time.Duration](value, other N) N {
	if value == 0 {
		return other
	}
	return value
}

// bodies limits the time and the size of a request's body. http.Server's ReadTimeout would end the context of an answer that takes longer.
func (s Server) bodies(next http.Handler) http.Handler {
	held := memory{byHost: map[string]int64{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 && len(r.TransferEncoding) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		if s.MaxBody == 0 {
			// The server reads the rest of a body after its answer. A slow sender would keep one of its connections.
			w.Header().Set("Connection", "close")
			_ = control.SetReadDeadline(time.Now().Add(noBodyTimeout)) // every connection has one
			next.ServeHTTP(w, r)
			return
		}
		_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
		b := &body{ReadCloser: http.MaxBytesReader(w, r.Body, s.MaxBody), from: hostOf(r.RemoteAddr), memory: &held,
			read: func() { _ = control.SetReadDeadline(time.Time{}) }}
		defer b.release()
		r.Body = b
		next.ServeHTTP(w, r)
	})
}
