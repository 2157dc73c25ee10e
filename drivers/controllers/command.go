// Package controllers is the role controller: one manager under one lease, with the controllers of compute domains, of GPU objects
// and of RDMA pools.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"gpufabric.io/drivers/api/resource/v1beta1"
	computedomain "gpufabric.io/drivers/computedomain/controller"
	gpu "gpufabric.io/drivers/gpu/controller"
	"gpufabric.io/drivers/gpu/controller/demand"
	"gpufabric.io/drivers/gpu/waiting"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	rdmapools "gpufabric.io/drivers/rdma/controller"
	"gpufabric.io/drivers/rdma/policy"
	"gpufabric.io/drivers/webhook/certificates"
)

const (
	role = "controller"
	// leaseName is the lease of the controller that works.
	leaseName = "gpufabric-controller"
)

// settings are the role's flags.
type settings struct {
	domains computedomain.Settings
	// webhook reports how the webhook's certificate is kept.
	webhook certificates.Options
	// neighbours are the controllers beside that of compute domains.
	neighbours []func(context.Context, ctrl.Manager) error
	// nicClusterPolicies reports whether one of them acts on NicClusterPolicies, whose CRD is another operator's and may be missing.
	nicClusterPolicies bool
	// waiting reports whether claims that wait for a form of a GPU get Events.
	waiting bool
	// byDemand reports whether MIGLayouts with auto are acted on, which needs the rights to see all pods.
	byDemand bool

	metricsAddress, healthAddress string
	leaderElection                bool
	// identity is the holder of the lease; empty: a new one with each start.
	identity string
}

// Command is `gpufabric controller`.
func Command(h host.Host) *cobra.Command {
	s := settings{neighbours: []func(context.Context, ctrl.Manager) error{gpu.Add, rdmapools.Add}}
	command := &cobra.Command{
		Use:   role,
		Short: "Form compute domains (one a cluster; further ones stand by)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(s.domains.Validate(), s.webhook.Validate()); err != nil {
				return err
			}
			if s.nicClusterPolicies {
				s.neighbours = append(s.neighbours, policy.Adder(policy.FromEnvironment(h.Env)))
			}
			config, err := h.Kubernetes()
			if err != nil {
				return err
			}
			return run(cmd.Context(), config, s)
		},
	}
	flags := command.Flags()
	s.domains.Bind(flags, h.Env)
	s.webhook.Bind(flags, h.Env)
	s.neighbours = append(s.neighbours, certificates.Adder(&s.webhook))
	flags.BoolVar(&s.nicClusterPolicies, "nic-cluster-policies", true,
		"act on NicClusterPolicies of mellanox.com; without their CRD the log would ask for it every ten seconds")
	flags.BoolVar(&s.waiting, "waiting-claims", true,
		"write Events on claims that wait for a form of a GPU; it reads DeviceClasses and ResourceSlices")
	flags.BoolVar(&s.byDemand, "layouts-by-demand", false, "give GPUs their MIG layouts by demand where a MIGLayout has auto; it watches all "+
		"pending pods while there is one")
	flags.StringVar(&s.metricsAddress, "metrics-address", "", "host:port that serves /metrics; empty: nowhere")
	flags.StringVar(&s.healthAddress, "health-address", "", "host:port that serves /healthz and /readyz; empty: nowhere")
	flags.StringVar(&s.identity, "identity", h.Env("POD_NAME"), "who holds the lease: the pod, so that its container goes on at once after a "+
		"crash instead of waiting for its own lease to end (environment: POD_NAME)")
	flags.BoolVar(&s.leaderElection, "leader-election", true, "stand by while another controller in the namespace works")
	flags.IntP("v", "v", 0, "log level: 0 for operators, up to 4 for developers")
	return command
}

// These limit one controller's load on the API server: 56 racks formed at once make a few hundred writes, which at 100 a second are
// done in seconds.
const (
	queriesPerSecond = 100
	burst            = 200
)

// run runs the controllers until ctx ends.
func run(ctx context.Context, config *rest.Config, s settings) error {
	manager, err := newManager(ctx, config, s)
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	kubernetes, err := host.Client(config, role)
	if err != nil {
		return err
	}
	recorder, stopRecorder := host.Recorder(ctx, kubernetes, role, "")
	defer stopRecorder()
	if err := computedomain.Add(ctx, manager, recorder, s.domains); err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	neighbours := s.neighbours
	if s.waiting {
		neighbours = append(neighbours, waiting.Adder(recorder))
	}
	if s.byDemand {
		neighbours = append(neighbours, demand.Adder(recorder))
	}
	for _, add := range neighbours {
		if err := manager.Add(&neighbour{config: manager.GetConfig(), add: add}); err != nil {
			return fmt.Errorf("set up an additional controller: %w", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, kubernetes, s) })
	group.Go(func() error {
		if err := manager.Start(ctx); err != nil {
			return fmt.Errorf("run the controller: %w", err)
		}
		return nil
	})
	return group.Wait()
}

func newManager(ctx context.Context, config *rest.Config, s settings) (ctrl.Manager, error) {
	// The library's caches log through a logger of the process, and complain where there is none.
	ctrl.SetLogger(klog.FromContext(ctx))
	config = rest.AddUserAgent(rest.CopyConfig(config), role)
	config.QPS, config.Burst = queriesPerSecond, burst
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	held, err := s.domains.Caches()
	if err != nil {
		return nil, err
	}
	renew, retry := 20*time.Second, 5*time.Second
	lease, namespace := renew+10*time.Second, s.domains.Namespace
	var lock resourcelock.Interface
	if s.leaderElection && s.identity != "" {
		lock, err = resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, leaseName,
			resourcelock.ResourceLockConfig{Identity: s.identity}, config, renew)
		if err != nil {
			return nil, fmt.Errorf("lease %s/%s: %w", namespace, leaseName, err)
		}
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:         scheme,
		Logger:         klog.FromContext(ctx),
		Cache:          cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: held},
		LeaderElection: s.leaderElection, LeaderElectionID: leaseName, LeaderElectionNamespace: namespace,
		LeaderElectionResourceLockInterface: lock, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		Metrics:                metricsserver.Options{BindAddress: "0"}, // serve has them
		HealthProbeBindAddress: "0",
	})
	return manager, err
}

// serve serves /metrics and the probes until ctx ends. The library's own servers have no limit of connections.
func serve(ctx context.Context, client kubernetes.Interface, s settings) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		access := metrics.Guard(s.domains.MetricsAuthentication, client)
		return access.Serve(ctx, s.metricsAddress, ctrlmetrics.Registry, nil)
	})
	group.Go(func() error {
		return metrics.ServeProbes(ctx, "--health-address", s.healthAddress, moving(ctrlmetrics.Registry))
	})
	return group.Wait()
}
