package simnode

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// creating is the kubelet's reason for a container that does not run yet.
const creating = "ContainerCreating"

// pullError means that the node cannot pull an image.
type pullError struct{ image string }

// Error is what the kubelet writes into its Event Failed, with containerd's words.
func (e *pullError) Error() string {
	registry, _, _ := strings.Cut(e.image, "/")
	return fmt.Sprintf("Failed to pull image %q: failed to resolve reference %q: dial tcp: lookup %s: no such host", e.image, e.image,
		registry)
}

// backOff is the kubelet's message for a container whose image will be pulled again later.
func (e *pullError) backOff() string {
	return fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", e.image, e.Error())
}

// pull reports why the images of a pod cannot be pulled. All images exist, except those of a registry below .invalid, which no
// name server resolves (RFC 6761, section 6.4).
func pull(pod *corev1.Pod) error {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if unreachable(c.Image) {
			return &pullError{c.Image}
		}
	}
	return nil
}

func unreachable(image string) bool {
	registry, _, named := strings.Cut(image, "/")
	return named && strings.HasSuffix(registry, ".invalid")
}
