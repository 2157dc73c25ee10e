package simnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"

	"k8s.io/klog/v2"
)

// Gateway is the API server's way to the pods of a simulated cluster, as the proxy of its egress selector: a CONNECT request
// for a pod's address in services is connected to the pod's own address. Webhooks use it.
type Gateway struct {
	server   http.Server
	listener net.Listener
	tunnels  sync.WaitGroup
}

// OpenGateway listens on a unix socket.
func OpenGateway(socket string) (*Gateway, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open the API server's way to pods: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("open the API server's way to pods: %w", err)
	}
	return &Gateway{listener: listener}, nil
}

// Run serves until ctx is done.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.tunnels.Wait()
	g.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.connect(ctx, w, r) })
	stop := context.AfterFunc(ctx, func() { _ = g.server.Close() })
	defer stop()
	if err := g.server.Serve(g.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API server's way to pods: %w", err)
	}
	return nil
}

func (g *Gateway) connect(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "this proxy only connects", http.StatusMethodNotAllowed)
		return
	}
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(podAddress(host), port))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = pod.Close()
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	g.tunnels.Go(func() {
		stop := context.AfterFunc(ctx, func() { _, _ = pod.Close(), client.Close() })
		defer stop()
		if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			klog.FromContext(ctx).V(4).Info("A tunnel to a pod ended", "err", err)
		}
		var ways sync.WaitGroup
		ways.Go(func() { _, _ = io.Copy(pod, buffered); closeWrite(pod) })
		_, _ = io.Copy(client, pod)
		closeWrite(client)
		ways.Wait()
		_, _ = pod.Close(), client.Close()
	})
}

// closeWrite signals the other end that no more data follows.
func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the connection may be closed already
	}
}
