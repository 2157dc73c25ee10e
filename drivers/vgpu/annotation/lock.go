package annotation

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// lockLead is how long before a pod's BindTime its scheduler may have locked the node: it writes one right after the other, and the
// API server takes time.
const lockLead = 30 * time.Second

// Locks says whether a node's lock was taken for a pod. HAMi writes the pod after the time; from other schedulers there is only the
// time. A pod's lock is taken right before its BindTime. A later lock was taken after the pod's had expired or was removed.
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
