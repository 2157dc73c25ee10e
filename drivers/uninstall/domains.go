package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/cliques"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// preparing bounds what is done before an uninstall. It is below the Job's activeDeadlineSeconds, so that the Job's log says what was left.
const preparing = 100 * time.Second

// Domains is what happens to ComputeDomains before an uninstall: afterwards no controller ends their IMEX daemons and removes their
// finalizers.
type Domains struct {
	// Namespace is the drivers' own.
	Namespace string
	// Controller is the controller's Deployment where it keeps a ComputeDomain for each NVLink clique; else empty.
	Controller string
	// All is set where the CRD goes with the drivers, and every ComputeDomain with it.
	All bool
}

// LeftError names the ComputeDomains that an uninstall would end.
type LeftError struct {
	// Domains are namespace/name, sorted.
	Domains []string
	// Namespace is the drivers' own.
	Namespace string
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("the uninstall removes the CRD (crds.keep: false) and %d ComputeDomains with it: %s. Delete them first, or keep the "+
		"CRD. To go on anyway, kubectl annotate namespace %s %s=%s, and uninstall without --wait: only the last Job removes the domains' "+
		"finalizers", len(e.Domains), listed(e.Domains), e.Namespace, AnnotationAnyway, valueAnyway)
}

// EndDomains waits until the ComputeDomains are gone that must go before the drivers: those of users where All is set, and those that the
// controller keeps for cliques. The error is a *LeftError where a user's is left that is not being deleted. A clique's domain with channels
// that domains hold stays where All is not set: jobs share memory by its daemons.
func EndDomains(ctx context.Context, client kubernetes.Interface, domains *computedomain.Client, d Domains) error {
	if d.All {
		anyway, err := goesOnAnyway(ctx, client, d.Namespace)
		if err != nil {
			return err
		}
		d.All = !anyway
	}
	var left []string
	err := domains.Await(ctx, func(all []*v1beta1.ComputeDomain) (bool, error) {
		left = nil
		var live []string
		for _, domain := range all {
			name := domain.Namespace + "/" + domain.Name
			switch {
			case computedomain.CliqueOf(domain, d.Namespace) != "" || !d.All:
			case domain.DeletionTimestamp == nil:
				live = append(live, name)
			default:
				left = append(left, name)
			}
		}
		if len(live) > 0 {
			return false, &LeftError{Domains: live, Namespace: d.Namespace}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return stillThere(err, left)
	}
	if d.Controller != "" {
		if err := keepNoCliques(ctx, client, d); err != nil {
			return err
		}
	}
	err = domains.Await(ctx, func(all []*v1beta1.ComputeDomain) (bool, error) {
		left = nil
		for _, domain := range all {
			if computedomain.CliqueOf(domain, d.Namespace) != "" && (d.All || len(domain.Status.Channels) == 0) {
				left = append(left, domain.Namespace+"/"+domain.Name)
			}
		}
		return len(left) == 0, nil
	})
	return stillThere(err, left)
}

// stillThere adds to the end of a wait what it waited for.
func stillThere(err error, left []string) error {
	if err == nil || len(left) == 0 {
		return err
	}
	if refused := (*LeftError)(nil); errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("%d ComputeDomains were still there after %v: %s; kubectl describe computedomain says what each waits for, and another "+
		"uninstall waits again: %w", len(left), preparing, listed(left), err)
}

// keepNoCliques stops the controller from keeping ComputeDomains for cliques. It would make again what is deleted.
func keepNoCliques(ctx context.Context, client kubernetes.Interface, d Domains) error {
	deployments := client.AppsV1().Deployments(d.Namespace)
	controller, err := deployments.Get(ctx, d.Controller, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no Deployment %s/%s ends the IMEX daemons of the cliques: upgrade the release first, or uninstall with --no-hooks "+
			"(docs/uninstall.md says what stays)", d.Namespace, d.Controller)
	}
	if err != nil {
		return fmt.Errorf("look up the controller %s/%s: %w", d.Namespace, d.Controller, err)
	}
	patch := cliques.StopKeeping(controller.Spec.Template.Spec.Containers)
	if patch == nil {
		return nil
	}
	data, err := json.Marshal(patch)
	if err != nil {
		panic(err) // maps of strings
	}
	if _, err := deployments.Patch(ctx, d.Controller, types.JSONPatchType, data, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("have the controller %s/%s keep no ComputeDomains for cliques: %w", d.Namespace, d.Controller, err)
	}
	klog.FromContext(ctx).Info("Waiting for the IMEX daemons of the cliques to end", "controller", klog.KObj(controller))
	return nil
}
