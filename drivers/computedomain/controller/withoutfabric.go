package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// fabricAgain is how long the number of nodes with NVLink fabric in a condition may be old: a node that gets the label of a clique causes
// no pass of a domain that waits.
const fabricAgain = 15 * time.Second

// explainFabric adds to the condition Ready of a user's domain that lacks nodes that nodes without NVLink fabric have no channel, where
// the cluster has fewer nodes with fabric than the domain needs.
func (r *Reconciler) explainFabric(ctx context.Context, p *pass, members []member) error {
	needs := max(1, p.domain.Spec.NumNodes)
	if !r.settings.FabricOnly || p.clique != "" || p.problem != nil || len(members) >= needs {
		return nil
	}
	nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	err := r.client.List(ctx, &nodes, client.HasLabels{v1beta1.LabelClique}, client.Limit(needs), client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list the nodes with NVLink fabric: %w", err)
	}
	ready := meta.FindStatusCondition(p.domain.Status.Conditions, v1beta1.ConditionReady)
	if len(nodes.Items) >= needs || ready == nil {
		return nil
	}
	ready.Message += fmt.Sprintf("; nodes without NVLink fabric have no channel (computeDomains.nodesWithoutFabric is false), and %d %s "+
		"fabric", len(nodes.Items), plural(len(nodes.Items), "node of the cluster has", "nodes of the cluster have"))
	p.again = soonest(p.again, fabricAgain)
	return nil
}
