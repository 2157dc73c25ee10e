package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/tests/simcluster/simnode"
)

// Received is what one container of a pod received from the drivers and its manifest.
type Received struct {
	Container string
	Devices   []oci.LinuxDevice
	Mounts    []oci.Mount
	Env       []string
}

// ReceivedBy reads what the containers of a pod received. A pod that has not started has received nothing, and the error
// reports why it waits.
func ReceivedBy(ctx context.Context, dir string, client kubernetes.Interface, namespace, name string) ([]Received, error) {
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look up the pod: %w", err)
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodPending {
		return nil, fmt.Errorf("pod %s/%s has not started: %s", namespace, name, waiting(pod))
	}
	index, err := NodeIndex(pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	var received []Received
	for _, container := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		bundle, err := readBundle(simnode.BundleFile(NodeDir(dir, index), string(pod.UID), container.Name))
		if err != nil {
			return nil, err
		}
		r := Received{Container: container.Name, Mounts: bundle.Mounts}
		if bundle.Process != nil {
			r.Env = bundle.Process.Env
		}
		if bundle.Linux != nil {
			r.Devices = bundle.Linux.Devices
		}
		received = append(received, r)
	}
	return received, nil
}

// NodeIndex is the number of the node with this name.
func NodeIndex(name string) (int, error) {
	digits, ok := strings.CutPrefix(name, "node-")
	index, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return 0, fmt.Errorf("node %q is none of a simulated cluster, whose nodes are called like %s", name, NodeName(0))
	}
	return index, nil
}

func readBundle(path string) (oci.Spec, error) {
	var bundle oci.Spec
	content, err := os.ReadFile(path)
	if err != nil {
		return bundle, fmt.Errorf("read the devices that the container received: %w", err)
	}
	if err := json.Unmarshal(content, &bundle); err != nil {
		return bundle, fmt.Errorf("read the devices that the container received: %s: %w", path, err)
	}
	return bundle, nil
}

// waiting reports what a pending pod waits for, by its status.
func waiting(pod *corev1.Pod) string {
	if pod.Status.Message != "" {
		return pod.Status.Message
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Message != "" {
			return condition.Message
		}
	}
	return "it is " + string(pod.Status.Phase)
}
