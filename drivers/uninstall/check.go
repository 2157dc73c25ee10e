package uninstall

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/listing"
)

const (
	// AnnotationAnyway on the drivers' namespace lets an uninstall continue though pods use the drivers' devices.
	AnnotationAnyway = "gpufabric.io/uninstall"
	valueAnyway      = "anyway"
	// namedPods is how many pods a refusal names; it counts the rest.
	namedPods = 20
)

// InUseError reports which pods use devices of the drivers.
type InUseError struct {
	// Pods are namespace/name, sorted.
	Pods []string
	// Namespace is the drivers' own.
	Namespace string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("%d pods use devices of the drivers, which could not be taken back from them any more: %s. Delete them first, or go on"+
		" anyway: kubectl annotate namespace %s %s=%s", len(e.Pods), listed(e.Pods), e.Namespace, AnnotationAnyway, valueAnyway)
}

func listed(pods []string) string { return listing.First(pods, namedPods, ", ") }

// Check checks whether pods use devices of the drivers. The error is an *InUseError where some do, unless the drivers' namespace
// has the annotation AnnotationAnyway. Pods of that namespace are the drivers' own.
func Check(ctx context.Context, client kubernetes.Interface, namespace string, drivers []string) error {
	var pods []string
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return fmt.Errorf("look for pods that use devices of the drivers: %w", err)
		}
		for i := range list.Items {
			if claim := &list.Items[i]; claim.Namespace != namespace && allocatedBy(claim, drivers) {
				for _, consumer := range claim.Status.ReservedFor {
					pods = append(pods, claim.Namespace+"/"+consumer.Name)
				}
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	slices.Sort(pods)
	if pods = slices.Compact(pods); len(pods) == 0 {
		return nil
	}
	if anyway, err := goesOnAnyway(ctx, client, namespace); err != nil {
		return err
	} else if !anyway {
		return &InUseError{Pods: pods, Namespace: namespace}
	}
	klog.FromContext(ctx).Info("Pods use devices of the drivers, and the uninstall continues by the annotation of the namespace",
		"pods", listed(pods))
	return nil
}

// goesOnAnyway reports whether the drivers' namespace has the annotation AnnotationAnyway.
func goesOnAnyway(ctx context.Context, client kubernetes.Interface, namespace string) (bool, error) {
	own, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read from namespace %s whether the uninstall continues anyway: %w", namespace, err)
	}
	return own.Annotations[AnnotationAnyway] == valueAnyway, nil
}

// allocatedBy reports whether a claim has a device of one of the drivers.
func allocatedBy(claim *resourceapi.ResourceClaim, drivers []string) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(result resourceapi.DeviceRequestAllocationResult) bool {
			return slices.Contains(drivers, result.Driver)
		})
}
