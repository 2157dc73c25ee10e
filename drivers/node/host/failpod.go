package host

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ReasonSharesRefused is the reason of a pod that a node plugin has failed: its node refuses it its shares of GPUs, or nothing holds it
// to them.
const ReasonSharesRefused = "SharesRefused"

// FailPod makes a pod of the node Failed, with ReasonSharesRefused, so that its controller makes another. It returns false for a pod that
// is gone.
//
// Rights: pods/status patch. An admission policy of the chart keeps plugins to pods of their node, and to this reason.
func FailPod(ctx context.Context, client kubernetes.Interface, namespace, name string, uid types.UID, message string) (bool, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid},
		"status": map[string]any{"phase": corev1.PodFailed, "reason": ReasonSharesRefused, "message": shortened(message)}})
	if err != nil {
		return false, err
	}
	_, err = client.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict: the pod of that name has another UID
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fail pod %s/%s: %w", namespace, name, err)
	}
	return true, nil
}
