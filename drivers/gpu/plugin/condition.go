package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// conditionRetry is how long the plugin waits before it tries again to write a condition.
const conditionRetry = 10 * time.Second

// maxCondition bounds a condition's message, in bytes.
const maxCondition = 2048

// conditions writes one condition of the plugin's own node. The admission policies allow no other change of a node's status.
type conditions struct {
	client kubernetes.Interface
	node   string
	// last is the last write; nil: there was none yet.
	last *corev1.NodeCondition
}

// write writes the condition where it differs from the last one.
func (w *conditions) write(ctx context.Context, now corev1.NodeCondition) error {
	now.Message = now.Message[:min(len(now.Message), maxCondition)]
	last := w.last
	if last != nil && last.Status == now.Status && last.Reason == now.Reason && last.Message == now.Message {
		return nil
	}
	if last == nil || last.Status != now.Status {
		now.LastTransitionTime = metav1.Now()
	} else {
		now.LastTransitionTime = last.LastTransitionTime
	}
	now.LastHeartbeatTime = metav1.Now()
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{now}}})
	if err != nil {
		return err
	}
	if _, err := w.client.CoreV1().Nodes().Patch(ctx, w.node, types.StrategicMergePatchType, body, metav1.PatchOptions{},
		"status"); err != nil {
		return fmt.Errorf("write the condition %s of node %s: %w", now.Type, w.node, err)
	}
	w.last = &now
	return nil
}
