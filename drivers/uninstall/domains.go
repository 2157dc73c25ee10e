package uninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/cliques"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

const (
	// preparing limits the time of the work before an uninstall. It is below the Job's activeDeadlineSeconds, so that the Job's log
	// lists the remaining objects.
	preparing = 100 * time.Second
	// ending is how long the controller has to end users' domains, and then those of cliques, where the uninstall goes on anyway. Pods that
	// use a domain may keep it for ever.
	ending = 35 * time.Second
)

// Domains is the action on ComputeDomains before an uninstall: afterwards no controller ends their IMEX daemons and removes their
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
		"CRD. To end them all, whatever uses them, kubectl annotate namespace %s %s=%s, and uninstall again",
		len(e.Domains), listed(e.Domains), e.Namespace, AnnotationAnyway, valueAnyway)
}

// EndDomains waits until the ComputeDomains are gone that must go before the drivers: those of users where All is set, and those that the
// controller keeps for cliques. The error is a *LeftError where a user's is left that is not being deleted. A clique's domain with channels
// that domains have stays where All is not set: jobs share memory by its daemons. Where All is set and the drivers' namespace has the
// annotation AnnotationAnyway, it deletes all of them by objects.
func EndDomains(ctx context.Context, client kubernetes.Interface, domains *computedomain.Client, objects metadata.Interface,
	d Domains) error {
	if d.All {
		switch anyway, err := goesOnAnyway(ctx, client, d.Namespace); {
		case err != nil:
			return err
		case anyway:
			return endAll(ctx, client, domains, objects, d)
		}
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
			domain = domain.DeepCopy() // the watch's own is not changed
			computedomain.Recall(domain, d.Namespace)
			if computedomain.CliqueOf(domain, d.Namespace) != "" && (d.All || len(domain.Status.Channels) == 0) {
				left = append(left, domain.Namespace+"/"+domain.Name)
			}
		}
		return len(left) == 0, nil
	})
	return stillThere(err, left)
}

// endAll deletes every ComputeDomain, those of cliques last, while the controller is there to end their IMEX daemons.
func endAll(ctx context.Context, client kubernetes.Interface, domains *computedomain.Client, objects metadata.Interface, d Domains) error {
	err := end(ctx, domains, objects, func(domain *v1beta1.ComputeDomain) bool { return computedomain.CliqueOf(domain, d.Namespace) == "" })
	if err == nil && d.Controller != "" {
		err = keepNoCliques(ctx, client, d)
	}
	if err != nil {
		return err
	}
	return end(ctx, domains, objects, func(*v1beta1.ComputeDomain) bool { return true })
}

// end deletes those ComputeDomains that which selects, and waits until they are gone. It removes the controller's finalizer from
// domains that the controller has not ended in time. Another's finalizer may hold a domain still, and then the error names it.
func end(ctx context.Context, domains *computedomain.Client, objects metadata.Interface, which func(*v1beta1.ComputeDomain) bool) error {
	requested := sets.New[types.UID]()
	var left []string
	look := func(all []*v1beta1.ComputeDomain) (bool, error) {
		left = nil
		for _, domain := range all {
			if !which(domain) {
				continue
			}
			left = append(left, domain.Namespace+"/"+domain.Name)
			if domain.DeletionTimestamp != nil || requested.Has(domain.UID) {
				continue
			}
			err := computeDomains(objects).Namespace(domain.Namespace).Delete(ctx, domain.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &domain.UID}})
			// A conflict: it has gone, and another of its name has come.
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return false, fmt.Errorf("delete ComputeDomain %s/%s: %w", domain.Namespace, domain.Name, err)
			}
			requested.Insert(domain.UID)
			klog.FromContext(ctx).Info("Deleted a ComputeDomain, by the namespace's annotation", "computeDomain", klog.KObj(domain))
		}
		return len(left) == 0, nil
	}
	patience, cancel := context.WithTimeout(ctx, ending)
	defer cancel()
	err := domains.Await(patience, look)
	if err != nil && patience.Err() != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("The controller has not ended all ComputeDomains", "after", ending, "left", listed(left))
		deleted := func(domain *metav1.PartialObjectMetadata) bool { return domain.DeletionTimestamp != nil }
		// The controller writes to them as well.
		err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { return FreeDomains(ctx, objects, deleted) })
		if err == nil {
			err = domains.Await(ctx, look)
		}
	}
	return stillThere(err, left)
}

// stillThere adds the remaining objects to the error of a wait.
func stillThere(err error, left []string) error {
	if !wait.Interrupted(err) || len(left) == 0 {
		return err
	}
	return fmt.Errorf("%d ComputeDomains were still there after %v: %s; kubectl describe computedomain gives the reason of each, and another "+
		"uninstall waits again: %w", len(left), preparing, listed(left), err)
}

// keepNoCliques stops the controller from keeping ComputeDomains for cliques. It would create deleted domains again.
func keepNoCliques(ctx context.Context, client kubernetes.Interface, d Domains) error {
	deployments := client.AppsV1().Deployments(d.Namespace)
	controller, err := deployments.Get(ctx, d.Controller, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the Deployment %s/%s that ends the IMEX daemons of the cliques does not exist: upgrade the release first, or "+
			"uninstall with --no-hooks (docs/uninstall.md lists the objects that stay)", d.Namespace, d.Controller)
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
		return fmt.Errorf("stop the controller %s/%s from keeping ComputeDomains for cliques: %w", d.Namespace, d.Controller, err)
	}
	klog.FromContext(ctx).Info("Waiting for the IMEX daemons of the cliques to end", "controller", klog.KObj(controller))
	return nil
}
