package computedomain

import (
	"encoding/json"
	"fmt"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// AnnotationKept is a ComputeDomain's annotation with the part of its status that must not be lost. The CRD of ComputeDomain has one
// schema in a cluster, and NVIDIA's GPU operator brings another one, which lacks these fields: the API server then leaves them out of
// every answer, and drops them at the next write. An annotation has no schema.
const AnnotationKept = "gpufabric.io/kept-status"

// maxKept bounds the annotation, in bytes: the API server takes 256 KiB of annotations in all.
const maxKept = 200 << 10

// kept is the content of AnnotationKept.
type kept struct {
	IMEX     v1beta1.IMEXMode               `json:"imex"`
	Channels []v1beta1.ComputeDomainChannel `json:"channels,omitempty"`
}

// Keep sets AnnotationKept from a domain's status, and reports whether it has changed. namespace is the controller's. A table that is too
// long for an annotation is an error, and the annotation stays as it is.
func Keep(domain *v1beta1.ComputeDomain, namespace string) (bool, error) {
	what := kept{IMEX: domain.Status.IMEX}
	if CliqueOf(domain, namespace) != "" {
		what.Channels = domain.Status.Channels
	}
	text, err := json.Marshal(what)
	switch {
	case err != nil:
		return false, fmt.Errorf("write annotation %s: %w", AnnotationKept, err)
	case len(text) > maxKept:
		return false, fmt.Errorf("the table of %d channels has %d bytes, and annotation %s may have %d: under another owner's CRD of "+
			"ComputeDomain it would be lost", len(what.Channels), len(text), AnnotationKept, maxKept)
	case domain.Annotations[AnnotationKept] == string(text):
		return false, nil
	}
	if domain.Annotations == nil {
		domain.Annotations = map[string]string{}
	}
	domain.Annotations[AnnotationKept] = string(text)
	return true, nil
}

// Recall fills a status from AnnotationKept where the API server has left the fields out. namespace is the controller's: a tenant may write
// the annotations of its own ComputeDomains, so a table of channels counts only there, and of others only whose daemons serve the domain.
func Recall(domain *v1beta1.ComputeDomain, namespace string) {
	text := domain.Annotations[AnnotationKept]
	if domain.Status.IMEX != "" || text == "" || len(text) > maxKept {
		return
	}
	var what kept
	if err := json.Unmarshal([]byte(text), &what); err != nil {
		return // not written by the controller, which writes it again
	}
	switch what.IMEX {
	case v1beta1.IMEXDomain, v1beta1.IMEXClique, v1beta1.IMEXHost:
	default:
		return
	}
	domain.Status.IMEX = what.IMEX
	if CliqueOf(domain, namespace) != "" {
		domain.Status.Channels = what.Channels
	}
}
