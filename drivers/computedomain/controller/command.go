// Package controller is the cluster's half of compute domains: it makes what a ComputeDomain needs, numbers its nodes, says in its
// status what it waits for, and removes everything when it goes.
package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/node/apiclient"
	"gpufabric.io/drivers/program/host"
)

const (
	role = "controller"
	// leaseName is the lease of the controller that works.
	leaseName = "gpufabric-controller"
)

// Settings are the controller's flags.
type Settings struct {
	// Namespace is where the controller and the IMEX daemons run.
	Namespace string
	// Image of the daemon pods, and the secrets to pull it with.
	Image            string
	ImagePullPolicy  string
	ImagePullSecrets []string
	// DaemonServiceAccount is what the daemon pods run as.
	DaemonServiceAccount string
	// HostMounts are directories of nodes that daemon pods see at the same path.
	HostMounts []string
	// DaemonVerbosity is the log level of the daemons.
	DaemonVerbosity int

	metricsAddress, healthAddress string
	leaderElection                bool
	// identity is who holds the lease; empty: somebody new with each start.
	identity string

	others []func(context.Context, ctrl.Manager) error
}

// Command is `gpufabric controller`. The other controllers run in the same process, under the same lease.
func Command(h host.Host, others ...func(context.Context, ctrl.Manager) error) *cobra.Command {
	s := Settings{others: others}
	command := &cobra.Command{
		Use:   role,
		Short: "Form compute domains (one a cluster; further ones stand by)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.validate(); err != nil {
				return err
			}
			config, err := h.Kubernetes()
			if err != nil {
				return err
			}
			return Run(cmd.Context(), config, s)
		},
	}
	flags := command.Flags()
	flags.StringVar(&s.Namespace, "namespace", h.Env("POD_NAMESPACE"), "namespace in which IMEX daemons run: the controller's own (environment: POD_NAMESPACE)")
	flags.StringVar(&s.Image, "image", "", "image of the IMEX daemons: this program's")
	flags.StringVar(&s.ImagePullPolicy, "image-pull-policy", string(corev1.PullIfNotPresent), "Always, IfNotPresent or Never")
	flags.StringSliceVar(&s.ImagePullSecrets, "image-pull-secrets", nil, "names of the secrets to pull the image with, in the namespace")
	flags.StringVar(&s.DaemonServiceAccount, "daemon-service-account", "gpufabric-imex-daemon", "service account of the IMEX daemons, in the namespace")
	flags.StringArrayVar(&s.HostMounts, "host-mount", nil, "directory of nodes that IMEX daemons see at the same path (repeatable)")
	flags.IntVar(&s.DaemonVerbosity, "daemon-v", 0, "log level of the IMEX daemons")
	flags.StringVar(&s.metricsAddress, "metrics-address", "", "host:port that serves /metrics; empty: nowhere")
	flags.StringVar(&s.healthAddress, "health-address", "", "host:port that serves /healthz and /readyz; empty: nowhere")
	flags.StringVar(&s.identity, "identity", h.Env("POD_NAME"), "who holds the lease: the pod, so that its container goes on at once after a crash instead of waiting for its own lease to end (environment: POD_NAME)")
	flags.BoolVar(&s.leaderElection, "leader-election", true, "stand by while another controller in the namespace works")
	flags.IntP("v", "v", 0, "log level: 0 what a person should know, 4 what a developer may")
	return command
}

func (s *Settings) validate() error {
	var errs []error
	if s.Namespace == "" {
		errs = append(errs, errors.New("--namespace is empty: give the controller's own namespace, or set POD_NAMESPACE"))
	}
	if s.Image == "" {
		errs = append(errs, errors.New("--image is empty: give this program's image, which the IMEX daemons run too"))
	}
	switch corev1.PullPolicy(s.ImagePullPolicy) {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		errs = append(errs, fmt.Errorf("--image-pull-policy %q: allowed are Always, IfNotPresent and Never", s.ImagePullPolicy))
	}
	for _, dir := range s.HostMounts {
		if !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("--host-mount takes an absolute path of a node, not %q", dir))
		}
	}
	return errors.Join(errs...)
}

// These bound what one controller does to the API server: 56 racks formed at once make a few hundred writes, which at 100 a second
// are done in seconds.
const (
	queriesPerSecond = 100
	burst            = 200
)

// Run runs the controller until ctx ends.
func Run(ctx context.Context, config *rest.Config, s Settings) error {
	manager, err := newManager(ctx, config, s)
	if err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	kubernetes, err := apiclient.New(config, role)
	if err != nil {
		return err
	}
	recorder, stopRecorder := apiclient.Recorder(ctx, kubernetes, role, "")
	defer stopRecorder()
	if err := newReconciler(manager.GetClient(), manager.GetAPIReader(), recorder, s).setup(ctx, manager); err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	for _, add := range s.others {
		if err := manager.Add(&neighbour{config: manager.GetConfig(), add: add}); err != nil {
			return fmt.Errorf("set another controller up: %w", err)
		}
	}
	if err := manager.Start(ctx); err != nil {
		return fmt.Errorf("run the controller: %w", err)
	}
	return nil
}

func newManager(ctx context.Context, config *rest.Config, s Settings) (ctrl.Manager, error) {
	// The library's caches log through a logger of the process, and complain where there is none.
	ctrl.SetLogger(klog.FromContext(ctx))
	config = rest.AddUserAgent(rest.CopyConfig(config), role)
	config.QPS, config.Burst = queriesPerSecond, burst
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	ours, err := labels.NewRequirement(v1beta1.LabelComputeDomain, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	labelled := labels.NewSelector().Add(*ours)
	inNamespace := map[string]cache.Config{s.Namespace: {}}
	release, renew := true, 20*time.Second
	lease, retry := renew+10*time.Second, 5*time.Second
	var lock resourcelock.Interface
	if s.leaderElection && s.identity != "" {
		if lock, err = resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, s.Namespace, leaseName, resourcelock.ResourceLockConfig{Identity: s.identity}, config, renew); err != nil {
			return nil, fmt.Errorf("lease %s/%s: %w", s.Namespace, leaseName, err)
		}
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		Logger: klog.FromContext(ctx),
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			// Only what belongs to a domain is held: the controller's memory grows with domains, not with the cluster.
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}:                       {Label: labelled},
				&corev1.Pod{}:                        {Label: labelled, Namespaces: inNamespace, Transform: keepDaemonPod},
				&appsv1.DaemonSet{}:                  {Label: labelled, Namespaces: inNamespace},
				&resourceapi.ResourceClaimTemplate{}: {Label: labelled},
			},
		},
		LeaderElection: s.leaderElection, LeaderElectionID: leaseName, LeaderElectionNamespace: s.Namespace, LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel: release, LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		Metrics:                metricsserver.Options{BindAddress: orOff(s.metricsAddress)},
		HealthProbeBindAddress: orOff(s.healthAddress),
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(manager.AddHealthzCheck("ping", healthz.Ping), manager.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return nil, err
	}
	return manager, nil
}

// orOff is the manager's word for an address that serves nothing.
func orOff(address string) string {
	if strings.TrimSpace(address) == "" {
		return "0"
	}
	return address
}

// keepDaemonPod keeps of a pod what the controller looks at.
func keepDaemonPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{PodIP: pod.Status.PodIP, Conditions: pod.Status.Conditions, ContainerStatuses: pod.Status.ContainerStatuses},
	}, nil
}
