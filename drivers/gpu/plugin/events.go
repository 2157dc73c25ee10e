package plugin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// maxEvent is how long an Event's message may be, in bytes: the API server refuses a longer one.
const maxEvent = 1024

// nodeEvents writes Events on the plugin's node.
type nodeEvents struct {
	recorder record.EventRecorder
	node     string
}

// Report reports a problem of the node as a whole.
func (e nodeEvents) Report(reason, message string) { e.write(corev1.EventTypeWarning, reason, message) }

// Note reports something about the node as a whole that is no problem.
func (e nodeEvents) Note(reason, message string) { e.write(corev1.EventTypeNormal, reason, message) }

func (e nodeEvents) write(kind, reason, message string) {
	// As the kubelet's own Events do: with the node's name as UID.
	node := &corev1.ObjectReference{Kind: "Node", Name: e.node, UID: types.UID(e.node)}
	e.recorder.Event(node, kind, reason, message[:min(len(message), maxEvent)])
}
