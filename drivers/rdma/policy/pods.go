package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxTrouble bounds the text that a pod gives about itself, in bytes, and maxTroubles the different texts of a DaemonSet.
const maxTrouble, maxTroubles = 300, 4

// troubles reports why pods of a driver's DaemonSet do not run, with the image's name and a node: "ImagePullBackOff of image x:1: ... (node
// a and 3 more)". Pods with the same trouble share a text. Pods that are about to start have none.
func troubles(set string, pods []corev1.Pod) []string {
	nodes := make(map[string][]string) // by trouble
	for i := range pods {
		if pods[i].Labels[labelInstance] != shorten(set) || pods[i].DeletionTimestamp != nil {
			continue
		}
		if text := trouble(&pods[i]); text != "" {
			nodes[text] = append(nodes[text], nodeOf(&pods[i]))
		}
	}
	order := slices.SortedFunc(maps.Keys(nodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(nodes[b]), len(nodes[a])), cmp.Compare(a, b))
	})
	var texts []string
	for i, text := range order {
		if i == maxTroubles {
			texts = append(texts, fmt.Sprintf("and %d other reasons", len(order)-i))
			break
		}
		where := "node " + slices.Min(nodes[text])
		if n := len(nodes[text]); n > 1 {
			where += fmt.Sprintf(" and %d more", n-1)
		}
		texts = append(texts, text+" ("+where+")")
	}
	return texts
}

// trouble reports why a pod does not run; empty: it runs, or is about to.
func trouble(pod *corev1.Pod) string {
	image := ""
	if len(pod.Spec.Containers) > 0 {
		image = pod.Spec.Containers[0].Image
	}
	say := func(reason, message string) string {
		text := reason + " of image " + image
		if message != "" {
			text += ": " + message
		}
		return strings.ToValidUTF8(text[:min(len(text), maxTrouble)], "")
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return say(c.Reason, c.Message)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		ended := c.State.Terminated
		if waiting := c.State.Waiting; waiting != nil {
			switch waiting.Reason {
			case "ContainerCreating", "PodInitializing", "":
				continue
			case "CrashLoopBackOff":
				// Its message has the pod's name, and not why the container ended.
				if c.LastTerminationState.Terminated == nil {
					return say(waiting.Reason, "")
				}
				ended = c.LastTerminationState.Terminated
				return say(waiting.Reason, fmt.Sprintf("it ended with code %d (%s) %s", ended.ExitCode, ended.Reason, ended.Message))
			}
			return say(waiting.Reason, waiting.Message)
		}
		if ended != nil {
			return say(ended.Reason, fmt.Sprintf("it ended with code %d %s", ended.ExitCode, ended.Message))
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return say(cmp.Or(pod.Status.Reason, string(pod.Status.Phase)), pod.Status.Message)
	}
	return ""
}

// nodeOf is the node of a DaemonSet's pod. One that is not scheduled names it in its affinity.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
					return field.Values[0]
				}
			}
		}
	}
	return "unknown"
}
