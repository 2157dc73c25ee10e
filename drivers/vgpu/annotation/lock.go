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

// Locks reports whether a node's lock was taken for a pod. HAMi writes the pod after the time; from other schedulers there is only the
// time. A pod's lock is taken right before its BindTime. A later lock was taken after the pod's had expired or was removed.
func Locks(value string, pod *corev1.Pod) bool {
	at, whose, named := strings.Cut(value, ",")
	taken, noTime := time.Parse(time.RFC3339, at)
	bound, noBind := strconv.ParseInt(pod.Annotations[BindTime], 10, 64)
	if named {
		// One that was taken later is that of the next pod of this name.
		later := noTime == nil && noBind == nil && taken.Truncate(time.Second).After(time.Unix(bound, 0))
		return whose == pod.Namespace+","+pod.Name && !later
	}
	if noTime != nil || noBind != nil {
		return false
	}
	lead := time.Unix(bound, 0).Sub(taken.Truncate(time.Second))
	return lead >= 0 && lead <= lockLead
}
