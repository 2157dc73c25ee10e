// Package daemon is the role that runs in every pod of a compute domain's DaemonSet. It learns this node's peers from the domain's
// status, keeps nvidia-imex running with them, and answers the kubelet's readiness probe.
//
// The daemons read their peers from the ComputeDomain's status itself, not from a ConfigMap: one write by the controller then
// serves users and daemons alike, and a watch delivers it at once, whereas a mounted ConfigMap takes the kubelet up to a minute.
// They may read ComputeDomains and write only Events. The pod's own readiness reports that a daemon is ready.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/imexd"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
)

const role = "imex-daemon"

// settings are a daemon's flags and the environment of its container.
type settings struct {
	programs                            imex.Programs
	dir, hostsFile, certificates        string
	node, podIP                         string
	domainUID, domainName, domainSpace  string
	podName, podNamespace, podUID       string
	healthPort, serverPort, commandPort int
	metricsPort                         int
	metricsAuthentication               bool
	verbosity                           int
}

// Command is `gpufabric-node imex-daemon`.
func Command(h host.Host) *cobra.Command {
	s := settings{
		podIP: h.Env("POD_IP"), podName: h.Env("POD_NAME"), podNamespace: h.Env("POD_NAMESPACE"), podUID: h.Env("POD_UID"),
		domainUID: h.Env(computedomain.EnvUID), domainName: h.Env(computedomain.EnvName), domainSpace: h.Env(computedomain.EnvNamespace),
	}
	command := &cobra.Command{
		Use:   role,
		Short: "Run a compute domain's IMEX daemon on this node (started by the controller's DaemonSet)",
		Long: `Run a compute domain's IMEX daemon on this node. The controller starts it in a DaemonSet; what it needs to know comes from the
environment: NODE_NAME, POD_IP, POD_NAME, POD_NAMESPACE and POD_UID from the downward API, and COMPUTE_DOMAIN_UUID,
COMPUTE_DOMAIN_NAME and COMPUTE_DOMAIN_NAMESPACE with the device that the pod claims.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), h, s)
		},
	}
	const brings = "the claimed device brings it; environment: "
	text := func(target *string, flag, env, fallback, usage string) {
		if value := h.Env(env); value != "" {
			fallback = value
		}
		command.Flags().StringVar(target, flag, fallback, usage)
	}
	text(&s.programs.Daemon, "imex", computedomain.EnvProgram, "", "nvidia-imex ("+brings+computedomain.EnvProgram+")")
	text(&s.programs.Control, "imex-ctl", computedomain.EnvControl, "", "nvidia-imex-ctl ("+brings+computedomain.EnvControl+")")
	text(&s.programs.Loader, "imex-loader", computedomain.EnvLoader, "",
		"the node's own loader, which starts both with the libraries beside it; empty: they need none ("+brings+computedomain.EnvLoader+")")
	text(&s.dir, "dir", "IMEXD_DIR", computedomain.DaemonDir, "the domain's directory on this node (environment: IMEXD_DIR)")
	text(&s.hostsFile, "hosts-file", "HOSTS_FILE", "/etc/hosts", "file that gives peers' names their addresses (environment: HOSTS_FILE)")
	command.Flags().StringVar(&s.certificates, "certificates", "",
		"directory with ca.crt, tls.crt and tls.key, by which nvidia-imex and its peers authenticate each other; empty: they do not")
	text(&s.node, "node-name", "NODE_NAME", "", "name of this node's Node object")
	command.Flags().IntVar(&s.healthPort, "health-port", computedomain.HealthPort, "port of /readyz and /metrics on the pod's address")
	command.Flags().BoolVar(&s.metricsAuthentication, "metrics-authentication", false,
		"serve /metrics by TLS, on --metrics-port, and only to those whose token may get that path")
	command.Flags().IntVar(&s.metricsPort, "metrics-port", computedomain.MetricsPort,
		"port of /metrics on the pod's address with --metrics-authentication")
	command.Flags().IntVar(&s.serverPort, "server-port", computedomain.ServerPort, "port on which IMEX daemons reach each other")
	command.Flags().IntVar(&s.commandPort, "command-port", computedomain.CommandPort, "port on which nvidia-imex-ctl reaches the daemon")
	command.Flags().IntVarP(&s.verbosity, "v", "v", 0, "log level: 0 for operators, up to 4 for developers")
	return command
}

func (s *settings) validate() error {
	var errs []error
	for _, need := range []struct{ name, value, from string }{
		{"NODE_NAME", s.node, "spec.nodeName of the pod"},
		{"POD_IP", s.podIP, "status.podIP of the pod"},
		{computedomain.EnvUID, s.domainUID, "the pod's claim of a device of class " + computedomain.DaemonClass},
		{computedomain.EnvName, s.domainName, "the same claim"},
		{computedomain.EnvNamespace, s.domainSpace, "the same claim"},
	} {
		if need.value == "" {
			errs = append(errs, fmt.Errorf("%s is empty: it comes from %s", need.name, need.from))
		}
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, h host.Host, s settings) error {
	spec, err := imex.NewSpec(s.dir, s.hostsFile, s.podIP, s.serverPort, s.commandPort)
	if err != nil {
		return err
	}
	if s.certificates != "" {
		spec.Certificates = &imex.Certificates{Dir: s.certificates, Name: computedomain.CertificateName(types.UID(s.domainUID))}
	}
	// Listen before anything that takes time: a refused probe is repeated only a second later, but an accepted one waits until it can
	// be answered.
	probes, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(s.podIP, strconv.Itoa(s.healthPort)))
	if err != nil {
		return fmt.Errorf("serve the readiness probe: %w", err)
	}
	defer probes.Close() //nolint:errcheck // the server closes it first, unless an error comes before
	config, err := h.Kubernetes()
	if err != nil {
		return err
	}
	config = host.Tune(config, role)
	client, err := computedomain.NewClient(config)
	if err != nil {
		return err
	}
	kubernetes, err := host.Client(config, role)
	if err != nil {
		return err
	}
	recorder, stopRecorder := host.Recorder(ctx, kubernetes, role, s.node)
	defer stopRecorder()
	pod := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: s.podNamespace, Name: s.podName, UID: types.UID(s.podUID)}
	supervisor := imexd.NewSupervisor(h.Runner(s.programs), spec, func(reason, message string) {
		recorder.Event(pod, corev1.EventTypeWarning, reason, message)
	})
	membership := &membership{node: s.node, address: s.podIP, uid: types.UID(s.domainUID), join: supervisor.Join}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return supervisor.Run(ctx) })
	group.Go(func() error {
		client.Watch(ctx, s.domainSpace, s.domainName, func(domain *domain) { membership.follow(ctx, domain) })
		return nil
	})
	registry := figures(supervisor)
	shown := registry
	if s.metricsAuthentication {
		address := net.JoinHostPort(s.podIP, strconv.Itoa(s.metricsPort))
		access := metrics.Guard(true, kubernetes)
		group.Go(func() error { return access.Serve(ctx, address, registry, nil) })
		shown = nil
	}
	group.Go(func() error { return serveHealth(ctx, probes, supervisor, shown) })
	return group.Wait()
}
