// Package uninstall is the role that runs once, after the drivers were uninstalled. It removes the labels and annotations of the
// node plugins from the cluster's nodes, and from ComputeDomains the finalizer that only the controller could remove. A plugin
// cannot do so when it ends, since it cannot distinguish an uninstall from a restart or an upgrade, and an uninstall removes its
// rights before it ends.
//
// RBAC: core nodes: list, patch; resource.nvidia.com computedomains: list, patch. Before the uninstall, with --check:
// resource.k8s.io resourceclaims: list; core namespaces, its own: get; with --end-compute-domains or --controller
// resource.nvidia.com computedomains: list, watch; with --end-compute-domains also delete, patch; with --controller apps deployments, that
// one: get, patch.
package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/node/host"
)

const role = "uninstall"

func computeDomains(client metadata.Interface) metadata.Getter {
	return client.Resource(v1beta1.SchemeGroupVersion().WithResource("computedomains"))
}

// page is how many nodes one request returns: a Node's metadata is a few kilobytes.
const page = 500

// Keys are the labels and annotations to remove from nodes.
type Keys struct {
	Labels, Annotations []string
}

// settings are the role's flags.
type settings struct {
	keys    Keys
	domains bool
	// check: report whether the uninstall may begin, and remove nothing.
	check     bool
	namespace string
	drivers   []string
	ends      Domains
}

// Command is `gpufabric uninstall`.
func Command(h host.Host) *cobra.Command {
	var s settings
	command := &cobra.Command{
		Use:   role,
		Short: "Take off nodes and ComputeDomains what the drivers wrote on them (the chart runs it when it is uninstalled)",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), h, s) },
	}
	flags := command.Flags()
	flags.StringSliceVar(&s.keys.Labels, "node-label", nil,
		"key of a label that is taken off every node, or the beginning of keys that ends in a slash; may be given several times")
	flags.StringSliceVar(&s.keys.Annotations, "node-annotation", nil,
		"key of an annotation that is taken off every node; may be given several times")
	flags.BoolVar(&s.domains, "compute-domains", false,
		"take the controller's finalizer off every ComputeDomain: without the controller none could be deleted")
	flags.BoolVar(&s.check, "check", false,
		"before an uninstall: take nothing off, and only check --driver, --end-compute-domains and --controller")
	flags.StringVar(&s.namespace, "namespace", h.Env("POD_NAMESPACE"), "the drivers' namespace, for --check (environment: POD_NAMESPACE)")
	flags.StringSliceVar(&s.drivers, "driver", nil,
		"with --check: fail while pods use devices of the DRA driver of this name; may be given several times")
	flags.BoolVar(&s.ends.All, "end-compute-domains", false,
		"with --check: fail while there are ComputeDomains, which the uninstall would end; end them where the namespace's annotation demands it")
	flags.StringVar(&s.ends.Controller, "controller", "",
		"with --check: name of the controller's Deployment, which is to end the IMEX daemons of NVLink cliques")
	return command
}

func run(ctx context.Context, h host.Host, s settings) error {
	switch {
	case s.check && (s.namespace == "" || len(s.drivers) == 0 && !s.ends.All && s.ends.Controller == ""):
		return errors.New("--check takes --namespace, the drivers' own, and --driver for each driver, --end-compute-domains or --controller")
	case !s.check && len(s.keys.Labels)+len(s.keys.Annotations) == 0 && !s.domains:
		return errors.New("nothing to remove: name it by --node-label, --node-annotation and --compute-domains")
	}
	config, err := h.Kubernetes()
	if err != nil {
		return err
	}
	if s.check {
		client, err := host.Client(config, role)
		if err != nil {
			return err
		}
		return prepare(ctx, client, config, s)
	}
	client, err := metadata.NewForConfig(host.Tune(config, role))
	if err != nil {
		return fmt.Errorf("make a client for nodes: %w", err)
	}
	err = Run(ctx, client, s.keys)
	if s.domains {
		err = errors.Join(err, FreeDomains(ctx, client, func(*metav1.PartialObjectMetadata) bool { return true }))
	}
	return err
}

// prepare runs before an uninstall. The Job has one attempt, so that a refusal is reported at once.
func prepare(ctx context.Context, client kubernetes.Interface, config *rest.Config, s settings) error {
	ctx, cancel := context.WithTimeout(ctx, preparing)
	defer cancel()
	if len(s.drivers) > 0 {
		err := persevere(ctx, func() error { return Check(ctx, client, s.namespace, s.drivers) })
		if err != nil {
			return err
		}
	}
	if !s.ends.All && s.ends.Controller == "" {
		return nil
	}
	domains, err := computedomain.NewClient(host.Tune(config, role))
	if err != nil {
		return err
	}
	objects, err := metadata.NewForConfig(host.Tune(config, role))
	if err != nil {
		return fmt.Errorf("make a client for ComputeDomains: %w", err)
	}
	s.ends.Namespace = s.namespace
	return persevere(ctx, func() error { return EndDomains(ctx, client, domains, objects, s.ends) })
}

// persevere repeats, until ctx ends, steps that failed for a temporary reason: an API server that does not answer, or that has not taken up
// the Job's rights yet, which are made just before the Job.
func persevere(ctx context.Context, attempt func() error) error {
	backoff := wait.Backoff{Duration: time.Second, Factor: 1.5, Jitter: 0.1, Steps: 6, Cap: 10 * time.Second}
	for {
		err := attempt()
		if err == nil || !passing(err) {
			return err
		}
		klog.FromContext(ctx).Error(err, "Trying again")
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return err
		}
	}
}

func passing(err error) bool {
	var network net.Error
	return errors.As(err, &network) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}

// Run removes the keys from every node. Where one cannot be changed it still changes the others; the error names it.
func Run(ctx context.Context, client metadata.Interface, keys Keys) error {
	nodes := client.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	var errs []error
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := nodes.List(ctx, options)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list nodes: %w", err))...)
		}
		for i := range list.Items {
			node := &list.Items[i]
			patch := keys.off(node)
			if patch == nil {
				continue
			}
			if _, err := nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("remove labels and annotations from node %s: %w", node.Name, err))
				continue
			}
			klog.FromContext(ctx).Info("Removed the drivers' labels and annotations from a node", "node", node.Name, "patch", string(patch))
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return errors.Join(errs...)
		}
	}
}

// FreeDomains removes the controller's finalizer from every ComputeDomain that which selects. The next controller adds it again. Those that
// are not being deleted stay, and so do the IMEX daemons of all: running jobs are not affected.
func FreeDomains(ctx context.Context, client metadata.Interface, which func(*metav1.PartialObjectMetadata) bool) error {
	domains := computeDomains(client)
	var errs []error
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := domains.List(ctx, options)
		if apierrors.IsNotFound(err) {
			return errors.Join(errs...) // the kind is gone, and with it all of it
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list ComputeDomains: %w", err))...)
		}
		for i := range list.Items {
			if !which(&list.Items[i]) {
				continue
			}
			if err := free(ctx, domains, &list.Items[i]); err != nil {
				errs = append(errs, err)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return errors.Join(errs...)
		}
	}
}

// free removes the finalizer from one domain.
func free(ctx context.Context, domains metadata.Getter, domain *metav1.PartialObjectMetadata) error {
	kept := []string{}
	for _, finalizer := range domain.Finalizers {
		if finalizer != computedomain.Finalizer {
			kept = append(kept, finalizer)
		}
	}
	if len(kept) == len(domain.Finalizers) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": kept, "resourceVersion": domain.ResourceVersion}})
	if err != nil {
		panic(err) // lists of strings
	}
	_, err = domains.Namespace(domain.Namespace).Patch(ctx, domain.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer from ComputeDomain %s/%s: %w", domain.Namespace, domain.Name, err)
	}
	klog.FromContext(ctx).Info("Removed the finalizer from a ComputeDomain", "computeDomain", klog.KObj(domain),
		"goes", domain.DeletionTimestamp != nil)
	return nil
}

// off is the merge patch that removes the keys from a node, nil where it has none of them.
func (k Keys) off(node *metav1.PartialObjectMetadata) []byte {
	fields := map[string]map[string]any{}
	collect := func(kind string, have map[string]string, keys []string) {
		for key := range have {
			if !slices.ContainsFunc(keys, func(k string) bool { return k == key || strings.HasSuffix(k, "/") && strings.HasPrefix(key, k) }) {
				continue
			}
			if fields[kind] == nil {
				fields[kind] = map[string]any{}
			}
			fields[kind][key] = nil
		}
	}
	collect("labels", node.Labels, k.Labels)
	collect("annotations", node.Annotations, k.Annotations)
	if len(fields) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": fields})
	if err != nil {
		panic(err) // maps of strings and nulls
	}
	return patch
}
