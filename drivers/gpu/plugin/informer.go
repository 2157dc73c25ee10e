package plugin

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/node/claimstate"
)

// maxInforming is how many faults may wait for their Events on claims: programs can make GPUs report mistakes all day.
const maxInforming = 64

// informer writes Events on the node, on each claim that has a device with a fault, and on the claim's pods. It reads the claims
// of one fault after another's, in a goroutine of its own: a slow API server must not delay the detection of the next fault.
type informer struct {
	client  kubernetes.Interface
	events  nodeEvents
	kind    *claims.Preparer
	records recorded
	waiting chan information
}

// recorded has the prepared claims. draplugin.Plugin implements it.
type recorded interface{ Records() []claimstate.Record }

// information is the message for a fault's holders.
type information struct {
	holders               []claimstate.Record
	kind, reason, message string
}

func newInformer(client kubernetes.Interface, events nodeEvents, kind *claims.Preparer, records recorded) *informer {
	return &informer{client: client, events: events, kind: kind, records: records, waiting: make(chan information, maxInforming)}
}

// inform queues Events on a fault. It does not wait for the API server.
func (i *informer) inform(ctx context.Context, f health.Fault, kind, reason, message string) {
	message = message[:min(len(message), maxEvent)]
	i.events.write(kind, reason, message)
	pool := i.kind.Hardware().Pool
	holders := slices.DeleteFunc(i.records.Records(), func(record claimstate.Record) bool {
		return !slices.ContainsFunc(record.Devices, func(held claimstate.Device) bool {
			d := pool.Device(held.Device)
			return d != nil && f.Touches(d)
		})
	})
	if len(holders) == 0 {
		return
	}
	select {
	case i.waiting <- information{holders, kind, reason, message}:
	default:
		klog.FromContext(ctx).Info("Claims do not get Events for a GPU's event: the API server is still busy with earlier ones", "gpu", f.GPU)
	}
}

// Run writes the Events on claims until ctx ends.
func (i *informer) Run(ctx context.Context) {
	for {
		select {
		case next := <-i.waiting:
			i.reportOnClaims(ctx, next)
		case <-ctx.Done():
			return
		}
	}
}

// reportOnClaims writes an Event on claims and on their pods.
func (i *informer) reportOnClaims(ctx context.Context, next information) {
	for _, record := range next.holders {
		claim, err := i.client.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
		if err != nil || claim.UID != record.UID {
			klog.FromContext(ctx).Info("Could not read a claim, which does not get an Event", "claim", record.Namespace+"/"+record.Name, "err", err)
			continue
		}
		i.events.recorder.Event(&corev1.ObjectReference{
			APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
		}, next.kind, next.reason, next.message)
		for _, consumer := range claim.Status.ReservedFor {
			if consumer.APIGroup == "" && consumer.Resource == "pods" {
				i.events.recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: consumer.Name,
					UID: consumer.UID}, next.kind, next.reason, next.message)
			}
		}
	}
}
