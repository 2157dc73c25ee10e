package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
)

// Path is where reviews are answered.
const Path = "/validate"

// Options are the role's flags.
type Options struct {
	// Address and Port are what it listens on; an empty address means all addresses.
	Address string
	Port    int
	// CertDir holds tls.crt and tls.key; they are read again when they change.
	CertDir string
	// MetricsAddress serves /metrics and /healthz; empty: nowhere.
	MetricsAddress string
	// Access says who may read the metrics; nil: everybody.
	Access *metrics.Access
	// Cliques says whether a ComputeDomain fits; nil: nobody is warned of one that does not.
	Cliques *Cliques
	// Files reports changed directories; nil: a watcher of the role's own.
	Files     *filewatch.Watcher
	Verbosity int
}

// Command is the subcommand webhook.
//
// A pod of this role needs no privileges and no host path: a Secret with tls.crt and tls.key at --cert-dir, a Service for --port, and a
// ValidatingWebhookConfiguration for Path on CREATE and UPDATE of resourceclaims, resourceclaimtemplates and
// deviceclasses (resource.k8s.io/v1, matchPolicy Equivalent) and of rdmapools, miglayouts and vgpuprofiles (gpufabric.io/v1alpha1). It may
// have several replicas. failurePolicy Ignore is safe: the node plugins check everything again.
//
// It needs no rights in the API but these: with --domain-warnings, to list nodes and resourceslices, and the configuration has CREATE of
// computedomains (resource.nvidia.com/v1beta1) too; with --metrics-authentication, to create TokenReviews and SubjectAccessReviews.
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
	flags.IntVarP(&o.Verbosity, "v", "v", 0, "log level: 0 what a person should know, 4 what a developer may")
	return cmd
}

// cliquesOf is nil unless it is asked for.
func cliquesOf(h host.Host, asked bool) (*Cliques, error) {
	if !asked {
		return nil, nil
	}
	config, err := h.Kubernetes()
	if err != nil {
		return nil, fmt.Errorf("ask which nodes NVLink cliques have (--domain-warnings): %w", err)
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
	served := &keyPair{directory: o.CertDir} // the controller may not have made it yet
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := webhook.NewServer(webhook.Options{
		Host: o.Address, Port: o.Port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion, c.GetCertificate = tls.VersionTLS12,
				served.get
		}},
	})
	server.Register(Path, &admission.Webhook{Handler: Reviewer{Cliques: o.Cliques}, RecoverPanic: ptr(true)})
	registry := prometheus.NewRegistry()
	registry.MustRegister(o.Files)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { served.follow(ctx, o.Files) })
	wg.Go(func() {
		answers := func() error {
			if served.ready() != nil {
				return nil // it waits for its certificate; a restart would not help
			}
			return server.StartedChecker()(nil)
		}
		if err := o.Access.Serve(ctx, o.MetricsAddress, registry, answers, served.ready); err != nil {
			cancel(err)
		}
	})
	if err := server.Start(ctx); err != nil {
		cancel(err)
		return fmt.Errorf("webhook on port %d with the certificate in %s: %w", o.Port, o.CertDir, err)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func ptr[T any](v T) *T { return &v }
