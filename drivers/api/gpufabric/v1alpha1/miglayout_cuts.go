package v1alpha1

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// MIGDecisionAnnotation is the latest decision about the GPUs of a layout that the controller made.
	MIGDecisionAnnotation = "gpufabric.io/mig-decision"
	// migCutsAnnotation are the ordered cuts, which Cuts reads.
	migCutsAnnotation = "gpufabric.io/mig-cuts"
	// maxCutReason bounds a cut's reason.
	maxCutReason = 200
)

// MIGCut is a change of a GPU's instances that the controller has ordered.
//
// +kubebuilder:object:generate=false
type MIGCut struct {
	UUID string `json:"uuid"`
	// Device is the name of the whole GPU in ResourceSlices.
	Device string `json:"device"`
	// Since is when it was ordered.
	Since time.Time `json:"since"`
	// Instances are its instances afterwards; none: it becomes whole.
	Instances []MIGLayoutInstance `json:"instances,omitempty"`
	Reason    string              `json:"reason,omitempty"`
}

// SetCuts stores the ordered cuts in the layout's annotation.
func (l *MIGLayout) SetCuts(cuts []MIGCut) error {
	if len(cuts) == 0 {
		delete(l.Annotations, migCutsAnnotation)
		return nil
	}
	cuts = slices.Clone(cuts)
	for i := range cuts {
		cuts[i].Reason = strings.ToValidUTF8(cuts[i].Reason[:min(len(cuts[i].Reason), maxCutReason)], "")
	}
	text, err := json.Marshal(cuts)
	if err != nil {
		return err //nolint:wrapcheck // nothing in it that cannot be marshalled
	}
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Annotations[migCutsAnnotation] = string(text)
	return nil
}

// Cuts returns the cuts in progress: those that are ordered, and that the node has neither reported as applied nor as failed.
func (l *MIGLayout) Cuts() []MIGCut {
	var cuts []MIGCut
	if json.Unmarshal([]byte(l.Annotations[migCutsAnnotation]), &cuts) != nil {
		return nil // somebody else wrote it
	}
	return slices.DeleteFunc(cuts, l.ended)
}

func (l *MIGLayout) ended(c MIGCut) bool {
	for i := range l.Status.Nodes {
		for j := range l.Status.Nodes[i].GPUs {
			g := &l.Status.Nodes[i].GPUs[j]
			if g.UUID != c.UUID || l.Status.Nodes[i].ObservedGeneration < l.Generation {
				continue
			}
			if g.State == MIGLayoutFailed || g.State == MIGLayoutApplied && sameInstances(g.Instances, c.Instances) {
				return true
			}
		}
	}
	return false
}

func sameInstances(a, b []MIGLayoutInstance) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(i MIGLayoutInstance) bool { return !slices.Contains(b, i) })
}

// DescribeInstances is a GPU's layout in words: whole, or 3g.40gb@0 1g.10gb@4, each with its first memory slice.
func DescribeInstances(instances []MIGLayoutInstance) string {
	if len(instances) == 0 {
		return MIGWhole
	}
	var words []string
	for _, i := range instances {
		words = append(words, fmt.Sprintf("%s@%d", i.Profile, i.Start))
	}
	return strings.Join(words, " ")
}
