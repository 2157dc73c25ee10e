package host

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/node/metrics"
)

const (
	// A node prepares at most as many claims at once as pods start on it (110 by the kubelet's default), each with one GET. The
	// client's own limit of 5 a second would make the last of them wait for 20 s. The API server has its own fairness.
	queriesPerSecond = 50
	burst            = 150
)

// Tune returns a copy of config with the limits and the encoding that a node role wants, named for the role in the API server's
// audit log.
func Tune(config *rest.Config, role string) *rest.Config {
	config = rest.AddUserAgent(rest.CopyConfig(config), role)
	config.QPS, config.Burst = queriesPerSecond, burst
	return config
}

// Connect returns the clients with which a role starts: access to the API server, and a client for built-in kinds. It reports wrong flags
// first, since there may be no API server.
func (h Host) Connect(role string, flags interface{ Validate() error }) (*rest.Config, kubernetes.Interface, error) {
	if err := flags.Validate(); err != nil {
		return nil, nil, err
	}
	config, err := h.Kubernetes()
	if err != nil {
		return nil, nil, err
	}
	client, err := Client(config, role)
	return config, client, err
}

// MetricsAccess checks the readers of the metrics of a role that otherwise does not use the API server. It returns nil, which lets
// everybody read, unless the check is enabled.
func (h Host) MetricsAccess(enabled bool, role string) (*metrics.Access, error) {
	if !enabled {
		return nil, nil
	}
	config, err := h.Kubernetes()
	if err != nil {
		return nil, fmt.Errorf("check the right to read metrics: %w", err)
	}
	client, err := Client(config, role)
	if err != nil {
		return nil, err
	}
	return metrics.Guard(true, client), nil
}

// Client makes a client for built-in kinds, which speaks protobuf.
func Client(config *rest.Config, role string) (kubernetes.Interface, error) {
	config = Tune(config, role)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	return client, nil
}

// The rate limit of a role's Events on the objects of one namespace: a burst, then one every five seconds. The burst suffices for
// an Event on each of a node's 110 pods and on each pod's claim.
const (
	eventBurst      = 300
	eventsPerSecond = 0.2
)

// Recorder makes a recorder for Events from role on node, and a function that stops it. It sends Events in the background, and
// counts repeated ones instead of sending them. It limits the Events of each namespace alone: other namespaces and nodes are not
// affected.
func Recorder(ctx context.Context, client kubernetes.Interface, role, node string) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{
		BurstSize: eventBurst, QPS: eventsPerSecond,
		// The default key is the object: a tenant with 10,000 claims would write 10,000 Events from each node.
		SpamKeyFunc: func(event *corev1.Event) string { return event.InvolvedObject.Namespace },
	}))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: role, Host: node}), broadcaster.Shutdown
}

// NodeTrouble reports a problem of the node as a whole, by an Event of type Warning. The Event names the node as the kubelet's own
// do: with the name as UID, which kubectl describe looks for.
func NodeTrouble(recorder record.EventRecorder, node string) func(reason, message string) {
	about := &corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node)}
	return func(reason, message string) {
		recorder.Event(about, corev1.EventTypeWarning, reason, shortened(message))
	}
}

// shortened returns as much of a message as an Event can hold. It never splits a character: the API server refuses text that is not
// UTF-8.
func shortened(message string) string {
	if len(message) <= maxEventMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxEventMessage], "")
}

// maxEventMessage is the API server's limit for an Event's message, in bytes.
const maxEventMessage = 1024
