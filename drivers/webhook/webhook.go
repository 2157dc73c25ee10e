package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/httpserver"
	"gpufabric.io/drivers/node/metrics"
)

// Path is where reviews are answered.
const Path = "/validate"

// maxReview is the size of a review in bytes: an object and its last version, of up to 3 MiB each (the API server's limit of a request).
const maxReview = 7 << 20

// Options are the role's flags.
type Options struct {
	// It listens on Address and Port; an empty address means all addresses.
	Address string
	Port    int
	// CertDir holds tls.crt and tls.key; they are read again when they change.
	CertDir string
	// MetricsAddress serves /metrics and /healthz; empty: nowhere.
	MetricsAddress string
	// Access restricts the readers of the metrics; nil: everybody.
	Access *metrics.Access
	// Cliques describes whether a ComputeDomain fits; nil: then there are no warnings.
	Cliques *Cliques
	// Files reports changed directories; nil: a watcher of the role's own.
	Files     *filewatch.Watcher
	Verbosity int
}

// Command is the subcommand webhook.
//
// A pod of this role does not need privileges or a host path: a Secret with tls.crt and tls.key at --cert-dir, a Service for --port, and a
// ValidatingWebhookConfiguration for Path on CREATE and UPDATE of resourceclaims, resourceclaimtemplates and
// deviceclasses (resource.k8s.io/v1, matchPolicy Equivalent) and of rdmapools, miglayouts and vgpuprofiles (gpufabric.io/v1alpha1). It may
// have several replicas. failurePolicy Ignore is safe: the node plugins check everything again.
//
// It does not need rights in the API but these: with --domain-warnings, to list nodes and resourceslices, and the configuration has
// CREATE of computedomains (resource.nvidia.com/v1beta1) too; with --metrics-authentication, to create TokenReviews and
// SubjectAccessReviews.
func Command(h host.Host) *cobra.Command {
	var o Options
	var authentication, warnings bool
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Refuse claims and configurations that no node could act on",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			access, err := h.MetricsAccess(authentication, "webhook")
			if err != nil {
				return err
			}
			o.Files, o.Access = h.Watcher(), access
			if o.Cliques, err = cliquesOf(h, warnings); err != nil {
				return err
			}
			return Run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Address, "address", "", "address to listen on; empty: every one")
	flags.IntVar(&o.Port, "port", 9443, "port to listen on")
	flags.StringVar(&o.CertDir, "cert-dir", "/etc/gpufabric/webhook", "directory with tls.crt and tls.key")
	flags.StringVar(&o.MetricsAddress, "metrics-address", h.Env("METRICS_ADDRESS"),
		"host:port that serves /metrics and /healthz; empty: nowhere")
	flags.BoolVar(&authentication, "metrics-authentication", false,
		"serve /metrics by TLS, and only to those whose token may get that path, of which the API server is asked")
	flags.BoolVar(&warnings, "domain-warnings", false,
		"warn of a new ComputeDomain for which no NVLink clique has enough healthy nodes, of which the API server is asked")
	flags.IntVarP(&o.Verbosity, "v", "v", 0, "log level: 0 for operators, up to 4 for developers")
	return cmd
}

// cliquesOf is nil if warnings are off.
func cliquesOf(h host.Host, enabled bool) (*Cliques, error) {
	if !enabled {
		return nil, nil
	}
	config, err := h.Kubernetes()
	if err != nil {
		return nil, fmt.Errorf("list the nodes of NVLink cliques (--domain-warnings): %w", err)
	}
	client, err := host.Client(config, "webhook")
	if err != nil {
		return nil, err
	}
	return NewCliques(client), nil
}

// setLogger gives controller-runtime, which logs by a logger of the process, one for the first role that needs it.
var setLogger = sync.OnceFunc(func() { logf.SetLogger(klog.Background()) })

// Run answers reviews until ctx ends.
func Run(ctx context.Context, o Options) error {
	setLogger()
	if o.Files == nil {
		o.Files = &filewatch.Watcher{}
	}
	served := &keyPair{directory: o.CertDir}
	_ = served.read() // so that the first connection has it; the controller may not have made it yet, which follow reports
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(o.Address, strconv.Itoa(o.Port)))
	if err != nil {
		return fmt.Errorf("webhook on port %d: %w", o.Port, err)
	}
	mux := http.NewServeMux()
	mux.Handle(Path, &admission.Webhook{Handler: Reviewer{Cliques: o.Cliques}, RecoverPanic: ptr(true)})
	server := httpserver.Server{Handler: mux, MaxBody: maxReview, TLS: &tls.Config{MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"}, GetCertificate: served.get}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(o.Files)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		served.follow(ctx, o.Files)
		return nil
	})
	group.Go(func() error { return o.Access.Serve(ctx, o.MetricsAddress, registry, nil, served.ready) })
	group.Go(func() error {
		if err := server.Serve(ctx, listener); err != nil {
			return fmt.Errorf("webhook on port %d with the certificate in %s: %w", o.Port, o.CertDir, err)
		}
		return nil
	})
	return group.Wait()
}

func ptr[T any](v T) *T { return &v }
