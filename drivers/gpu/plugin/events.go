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

// Report reports trouble with the node as a whole.
func (e nodeEvents) Report(reason, message string) { e.write(corev1.EventTypeWarning, reason, message) }

// Note says something about the node as a whole that is no trouble.
func (e nodeEvents) Note(reason, message string) { e.write(corev1.EventTypeNormal, reason, message) }

func (e nodeEvents) write(kind, reason, message string) {
	// As the kubelet's own Events name it: with the node's name for a UID.
	node := &corev1.ObjectReference{Kind: "Node", Name: e.node, UID: types.UID(e.node)}
	e.recorder.Event(node, kind, reason, message[:min(len(message), maxEvent)])
}
