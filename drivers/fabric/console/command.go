// Package console serves the page of the fabric: racks with nodes, GPUs and ports, their holders, domains that form, and pods that wait.
// The page is live while a viewer has it open.
//
// It has no rights of its own. On a person's machine it reads the cluster with their kubeconfig, and shows it to everybody with the
// address that it prints. In a cluster (--viewer-tokens) each request brings the viewer's own bearer token, and the page shows the
// objects that this viewer may read.
package console

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/fabric/reader"
	"gpufabric.io/drivers/fabric/topology"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/httpserver"
)

const (
	role = "console"
	// maxConns limits the connections, of which one address may have all: viewers come by one proxy.
	maxConns = 256
	// answerTime limits an answer of the doctor; streams limit each of their writes.
	answerTime = examining + 10*time.Second
)

// options are the command's flags.
type options struct {
	address, kubeconfig, namespace string
	viewerTokens                   bool
	server, serverCA               string
	hosts                          []string
	viewers                        int
}

// Command is `gpufabric console`.
func Command(h host.Host) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   role,
		Short: "Serve a page that shows the fabric, live, with the viewer's own rights",
		Long: "Serve a page that shows the fabric, live, with the viewer's own rights.\n\n" +
			"On your own machine it reads the cluster with your kubeconfig and prints the address to open. In a cluster, with\n" +
			"--viewer-tokens, it uses no credentials of its own: each request brings the viewer's bearer token.",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), h) },
	}
	flags := command.Flags()
	flags.StringVar(&o.address, "address", "127.0.0.1:8420", "where the page is served; port 0 takes a free one")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: KUBECONFIG")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "show claims, pods and domains of this namespace alone")
	flags.BoolVar(&o.viewerTokens, "viewer-tokens", false, "read the cluster with the bearer token of each request, and with nothing else")
	flags.StringVar(&o.server, "api-server", "", "with --viewer-tokens: URL of the API server; empty: the cluster's own")
	flags.StringVar(&o.serverCA, "api-server-ca", "", "with --viewer-tokens: file with the certificates that the API server is verified by")
	flags.StringSliceVar(&o.hosts, "host", nil, "a name under which browsers reach the page, besides localhost and addresses of this "+
		"machine's loopback; may be given several times")
	flags.IntP("v", "v", 0, "log level: 0 for operators, up to 4 for developers")
	flags.IntVar(&o.viewers, "viewers", 4, "how many viewers may look at once; each has a picture of its own in memory")
	return command
}

func (o *options) validate() error {
	var errs []error
	if !o.viewerTokens && o.server+o.serverCA != "" {
		errs = append(errs, errors.New("--api-server and --api-server-ca need --viewer-tokens; a kubeconfig has its own server"))
	}
	if o.viewerTokens && o.kubeconfig != "" {
		errs = append(errs, errors.New("--kubeconfig and --viewer-tokens: only one of them is allowed"))
	}
	if o.viewers < 1 || o.viewers > 1000 {
		errs = append(errs, fmt.Errorf("--viewers %d: want 1 to 1000", o.viewers))
	}
	bound, _, err := net.SplitHostPort(o.address)
	if err != nil {
		errs = append(errs, fmt.Errorf("--address %q: want HOST:PORT: %w", o.address, err))
	} else if ip := net.ParseIP(bound); !o.viewerTokens && bound != "localhost" && (ip == nil || !ip.IsLoopback()) {
		errs = append(errs, fmt.Errorf("--address %q: with a kubeconfig the page is served to this machine only, such as at 127.0.0.1:8420; "+
			"use a tunnel from other machines", o.address))
	}
	return errors.Join(errs...)
}

func (o *options) run(ctx context.Context, h host.Host) error {
	if err := o.validate(); err != nil {
		return err
	}
	config, err := o.reach(h)
	if err != nil {
		return err
	}
	settings := Settings{Config: config, Hosts: o.hosts, Viewers: o.viewers,
		Options: reader.Options{Namespace: o.namespace, Agent: "gpufabric-" + role}}
	if !o.viewerTokens {
		settings.Key = newKey()
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.address)
	if err != nil {
		return fmt.Errorf("serve the page at %s: %w; --address takes another, port 0 a free one", o.address, err)
	}
	where := "http://" + listener.Addr().String() + "/"
	if settings.Key != "" {
		fmt.Fprintf(h.Out(), "The fabric: %s#key=%s\nThe address is for you alone: it shows what your kubeconfig may read. Ctrl-C ends it.\n",
			where, settings.Key)
	} else {
		klog.FromContext(ctx).Info("Serving the page; each viewer brings a token", "address", where)
	}
	return Serve(ctx, settings, listener)
}

// reach is how the API server is reached: with the viewer's kubeconfig, or with nothing but its address and certificates.
func (o *options) reach(h host.Host) (*rest.Config, error) {
	if !o.viewerTokens {
		return topology.Reach(h, o.kubeconfig)
	}
	server := o.server
	if server == "" {
		name, port := h.Env("KUBERNETES_SERVICE_HOST"), h.Env("KUBERNETES_SERVICE_PORT")
		if name == "" || port == "" {
			return nil, errors.New("--viewer-tokens: this process does not run in a pod, so --api-server must name the API server")
		}
		server = "https://" + net.JoinHostPort(name, port)
	}
	if o.serverCA != "" {
		if _, err := os.Stat(o.serverCA); err != nil {
			return nil, fmt.Errorf("--api-server-ca: %w", err)
		}
	}
	return &rest.Config{Host: server, TLSClientConfig: rest.TLSClientConfig{CAFile: o.serverCA}}, nil
}

// newKey makes the key of a local page: 128 random bits.
func newKey() string {
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails (crypto/rand)
	return hex.EncodeToString(key[:])
}

// Serve serves the page until ctx ends.
func Serve(ctx context.Context, settings Settings, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sessions := newSessions(ctx, settings)
	defer sessions.wait()
	defer cancel()
	server := httpserver.Server{Handler: handler(settings, sessions), Connections: maxConns, PerAddress: maxConns, WriteTimeout: answerTime}
	if err := server.Serve(ctx, listener); err != nil {
		return fmt.Errorf("serve the page: %w", err)
	}
	return ctx.Err()
}
