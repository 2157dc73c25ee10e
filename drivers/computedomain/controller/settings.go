// Package controller is the cluster's half of compute domains: it makes the objects of a ComputeDomain, numbers its nodes, reports in its
// status why it waits, and removes everything when it goes.
package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// Settings are the flags of the controller of compute domains.
type Settings struct {
	// Namespace is where the IMEX daemons run: the controller's own.
	Namespace string
	// Image of the daemon pods, and the secrets to pull it with.
	Image            string
	ImagePullPolicy  string
	ImagePullSecrets []string
	// DaemonServiceAccount is the service account of the daemon pods.
	DaemonServiceAccount string
	// HostMounts are directories of nodes that daemon pods see at the same path.
	HostMounts []string
	// DaemonVerbosity is the log level of the daemons.
	DaemonVerbosity int
	// IMEX selects the IMEX daemons that serve new domains.
	IMEX v1beta1.IMEXMode
	// MetricsAuthentication has the daemons, and the controller itself, serve /metrics by TLS, and only to those whose token may get that
	// path.
	MetricsAuthentication bool
	// NetworkPolicies makes a NetworkPolicy for each domain, which keeps others from its daemons' ports.
	NetworkPolicies bool
	// Certificates makes the IMEX daemons of new domains authenticate each other by certificates.
	Certificates bool
	// FabricOnly is that of the node plugins: a node without NVLink fabric has no channel.
	FabricOnly bool
	// Owners are the kinds of workloads that a domain may go with, of OwnerKinds.
	Owners []string
}

// Bind adds the flags to a flag set.
func (s *Settings) Bind(flags *pflag.FlagSet, getenv func(string) string) {
	flags.StringVar(&s.Namespace, "namespace", getenv("POD_NAMESPACE"),
		"namespace in which IMEX daemons run: the controller's own (environment: POD_NAMESPACE)")
	flags.StringVar((*string)(&s.IMEX), "imex", string(v1beta1.IMEXDomain),
		"whose IMEX daemons serve domains that are made from now on: Domain (each its own), Clique (those of the clique, by a channel each) or "+
			"Host (the service nvidia-imex of each node, by a channel each)")
	flags.StringVar(&s.Image, "image", "", "image of the IMEX daemons: this program's")
	flags.StringVar(&s.ImagePullPolicy, "image-pull-policy", string(corev1.PullIfNotPresent), "Always, IfNotPresent or Never")
	flags.StringSliceVar(&s.ImagePullSecrets, "image-pull-secrets", nil, "names of the secrets to pull the image with, in the namespace")
	flags.StringVar(&s.DaemonServiceAccount, "daemon-service-account", "gpufabric-imex-daemon",
		"service account of the IMEX daemons, in the namespace")
	flags.StringArrayVar(&s.HostMounts, "host-mount", nil, "directory of nodes that IMEX daemons see at the same path (repeatable)")
	flags.BoolVar(&s.NetworkPolicies, "network-policies", false,
		"make a NetworkPolicy for each compute domain, by which only its own IMEX daemons reach each other")
	flags.BoolVar(&s.Certificates, "imex-certificates", false,
		"have the IMEX daemons of new domains authenticate each other by certificates of an authority for each domain")
	flags.BoolVar(&s.FabricOnly, "fabric-only", false,
		"explain domains by the node plugins' flag of this name: nodes without NVLink fabric have no channel")
	flags.BoolVar(&s.MetricsAuthentication, "metrics-authentication", false,
		"serve /metrics by TLS, and only to those whose token may get that path; the IMEX daemons do the same")
	flags.StringSliceVar(&s.Owners, "owners", nil, "kinds of workloads that a compute domain may be deleted with (annotation "+
		v1beta1.AnnotationOwner+"): "+strings.Join(OwnerKinds(), ", "))
	flags.IntVar(&s.DaemonVerbosity, "daemon-v", 0, "log level of the IMEX daemons")
}

// Validate names every flag that cannot work.
func (s *Settings) Validate() error {
	var errs []error
	if s.Namespace == "" {
		errs = append(errs, errors.New("--namespace is empty: give the controller's own namespace, or set POD_NAMESPACE"))
	}
	if s.Image == "" {
		errs = append(errs, errors.New("--image is empty: give this program's image, which the IMEX daemons run too"))
	}
	if !slices.Contains(v1beta1.IMEXModes(), s.IMEX) {
		errs = append(errs, fmt.Errorf("--imex %q: allowed are %v", s.IMEX, v1beta1.IMEXModes()))
	}
	switch corev1.PullPolicy(s.ImagePullPolicy) {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		errs = append(errs, fmt.Errorf("--image-pull-policy %q: allowed are Always, IfNotPresent and Never", s.ImagePullPolicy))
	}
	for _, kind := range s.Owners {
		if _, known := owners[kind]; !known {
			errs = append(errs, fmt.Errorf("--owners %q: allowed are %v", kind, OwnerKinds()))
		}
	}
	for _, dir := range s.HostMounts {
		if !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("--host-mount %q: must be an absolute path of a node", dir))
		}
	}
	return errors.Join(errs...)
}

// Caches describes what the manager's cache holds for this controller: only what belongs to a domain, so that its memory grows with
// domains and not with the cluster.
func (s *Settings) Caches() (map[client.Object]cache.ByObject, error) {
	ours, err := labels.NewRequirement(v1beta1.LabelComputeDomain, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	labelled := labels.NewSelector().Add(*ours)
	inNamespace := map[string]cache.Config{s.Namespace: {}}
	held := map[client.Object]cache.ByObject{
		&corev1.Node{}:                       {Transform: keepLabels},
		&corev1.Pod{}:                        {Label: labelled, Namespaces: inNamespace, Transform: keepDaemonPod},
		&appsv1.DaemonSet{}:                  {Label: labelled, Namespaces: inNamespace},
		&resourceapi.ResourceClaimTemplate{}: {Label: labelled},
	}
	if s.NetworkPolicies {
		held[&networkingv1.NetworkPolicy{}] = cache.ByObject{Label: labelled, Namespaces: inNamespace}
	}
	return held, nil
}

// keepLabels removes the parts of a node that the controller does not read.
func keepLabels(obj any) (any, error) {
	node, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	kept := &metav1.PartialObjectMetadata{TypeMeta: node.TypeMeta}
	kept.Name, kept.UID, kept.ResourceVersion, kept.Labels = node.Name, node.UID, node.ResourceVersion, map[string]string{}
	for label, value := range node.Labels {
		if ours := strings.HasPrefix(label, computedomain.LabelMemberPrefix); ours || label == v1beta1.LabelClique ||
			label == v1beta1.LabelComputeDomain || label == computedomain.LabelChannels || label == computedomain.LabelHostIMEX {
			kept.Labels[label] = value
		}
	}
	return kept, nil
}

// keepDaemonPod removes the parts of a pod that the controller does not read.
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

// Add adds the controller to a manager with ComputeDomains in its scheme and a cache as in Caches. Events go to recorder.
func Add(ctx context.Context, m ctrl.Manager, recorder record.EventRecorder, s Settings) error {
	r := newReconciler(m.GetClient(), m.GetAPIReader(), recorder, s)
	if err := r.setup(ctx, m); err != nil {
		return err
	}
	// Only the leader serves them: a standby does not have a domain's time in its state.
	figures := newCollector(r.client, &r.clocks, r.now, namedDomains)
	if err := m.Add(manager.RunnableFunc(func(ctx context.Context) error { return figures.serve(ctx, metrics.Registry) })); err != nil {
		return err
	}
	return (&cliques{client: m.GetClient(), settings: s}).setup(m)
}
