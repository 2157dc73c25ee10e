package annotation

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// lockLead is how long before a pod's BindTime its scheduler may have locked the node: it writes one right after the other, and the API
// server takes its time.
const lockLead = 30 * time.Second

// Locks tells whether a node's lock is the one that was taken for a pod. HAMi writes whose it is after the time. From the others there is
// only the time: a pod's lock is taken right before its BindTime, and a later one after the pod's had expired or was taken off.
func Locks(value string, pod *corev1.Pod) bool {
	at, whose, named := strings.Cut(value, ",")
	if named {
		return whose == pod.Namespace+","+pod.Name
	}
	taken, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return false
	}
	bound, err := strconv.ParseInt(pod.Annotations[BindTime], 10, 64)
	if err != nil {
		return false
	}
	lead := time.Unix(bound, 0).Sub(taken.Truncate(time.Second))
	return lead >= 0 && lead <= lockLead
}
