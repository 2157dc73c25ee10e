package simnode

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// The kubelet retries volumes much sooner than a whole pod. It often has to, since the API server refuses a node tokens and
// ConfigMaps until its authorizer has seen the pod's binding.
const (
	firstMountRetry = 100 * time.Millisecond
	lastMountRetry  = 5 * time.Second
)

// mount makes the pod's volumes and retries failures until the pod is to end.
func (w *worker) mount(ctx context.Context) (map[string]string, error) {
	for retry := firstMountRetry; ; retry = min(2*retry, lastMountRetry) {
		made, err := w.volumes(ctx)
		if err == nil {
			return made, nil
		}
		if retry == lastMountRetry {
			w.node.warn(ctx, w.pod(), "FailedMount", err.Error())
		}
		select {
		case <-time.After(retry):
		case <-w.deleted:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// volumes makes the pod's volumes and returns their directories (or files) by name.
func (w *worker) volumes(ctx context.Context) (map[string]string, error) {
	pod := w.pod()
	made := map[string]string{}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the pod's directory: %w", err)
	}
	hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n%s\t%s\n", w.address, pod.Name)
	if err := os.WriteFile(w.hostsFile(), []byte(hosts), 0o644); err != nil {
		return nil, fmt.Errorf("write the pod's /etc/hosts: %w", err)
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		path, err := w.volume(ctx, volume)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		if path != "" {
			made[volume.Name] = path
		}
	}
	return made, nil
}

// configPeriod is how often mounted ConfigMaps and Secrets are read again. The kubelet takes up to a minute and a half.
const configPeriod = 20 * time.Second

// mountsConfig reports whether the pod mounts a ConfigMap or a Secret that may change or appear later. Every pod mounts
// kube-root-ca.crt, which does neither.
func (w *worker) mountsConfig() bool {
	for _, volume := range w.pod().Spec.Volumes {
		if volume.ConfigMap != nil || volume.Secret != nil {
			return true
		}
	}
	return false
}

// refresh updates the pod's volumes of ConfigMaps and Secrets. Failures are retried the next time.
func (w *worker) refresh(ctx context.Context) {
	pod := w.pod()
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].ConfigMap == nil && pod.Spec.Volumes[i].Secret == nil {
			continue
		}
		if _, err := w.volume(ctx, &pod.Spec.Volumes[i]); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Reading a mounted volume again failed and is tried again", "volume", pod.Spec.Volumes[i].Name, "err",
				err)
		}
	}
}

// hostsFile is the pod's /etc/hosts, which the kubelet makes for all its containers.
func (w *worker) hostsFile() string { return filepath.Join(w.dir, "etc-hosts") }

func (w *worker) volume(ctx context.Context, volume *corev1.Volume) (string, error) {
	dir := filepath.Join(w.dir, "volumes", volume.Name)
	switch {
	case volume.HostPath != nil:
		return w.hostPath(volume.HostPath)
	case volume.EmptyDir != nil:
		return dir, os.MkdirAll(dir, 0o777)
	case volume.ConfigMap != nil:
		return dir, w.project(ctx, dir, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: volume.ConfigMap.LocalObjectReference, Items: volume.ConfigMap.Items, Optional: volume.ConfigMap.Optional,
		}})
	case volume.DownwardAPI != nil:
		return dir, w.project(ctx, dir, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: volume.DownwardAPI.Items}})
	case volume.Secret != nil:
		return dir, w.project(ctx, dir, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: volume.Secret.SecretName}, Items: volume.Secret.Items,
			Optional: volume.Secret.Optional,
		}})
	case volume.Projected != nil:
		for _, source := range volume.Projected.Sources {
			if err := w.project(ctx, dir, source); err != nil {
				return "", err
			}
		}
		return dir, nil
	}
	return "", nil // kinds that no pod of ours has
}

func (w *worker) hostPath(source *corev1.HostPathVolumeSource) (string, error) {
	path, ok := w.node.paths.Real(source.Path)
	if !ok {
		return "", fmt.Errorf("the node has no %s", source.Path)
	}
	switch ptr.Deref(source.Type, corev1.HostPathUnset) {
	case corev1.HostPathDirectoryOrCreate:
		return path, os.MkdirAll(path, 0o755)
	case corev1.HostPathDirectory, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev:
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("the node has no %s: %w", source.Path, err)
		}
	}
	return path, nil
}

// project writes one source of a projected volume into dir.
func (w *worker) project(ctx context.Context, dir string, source corev1.VolumeProjection) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the volume: %w", err)
	}
	pod := w.pod()
	switch {
	case source.ServiceAccountToken != nil:
		return w.token(ctx, filepath.Join(dir, source.ServiceAccountToken.Path), source.ServiceAccountToken)
	case source.ConfigMap != nil:
		object, err := w.node.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, source.ConfigMap.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && ptr.Deref(source.ConfigMap.Optional, false) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("ConfigMap %s: %w", source.ConfigMap.Name, err)
		}
		content := map[string][]byte{}
		for key, value := range object.Data {
			content[key] = []byte(value)
		}
		return writeKeys(dir, content, source.ConfigMap.Items, ptr.Deref(source.ConfigMap.Optional, false))
	case source.Secret != nil:
		object, err := w.node.client.CoreV1().Secrets(pod.Namespace).Get(ctx, source.Secret.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && ptr.Deref(source.Secret.Optional, false) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("secret %s: %w", source.Secret.Name, err)
		}
		return writeKeys(dir, object.Data, source.Secret.Items, ptr.Deref(source.Secret.Optional, false))
	case source.DownwardAPI != nil:
		for _, item := range source.DownwardAPI.Items {
			if item.FieldRef == nil {
				continue
			}
			value, err := w.field(item.FieldRef.FieldPath)
			if err != nil {
				return fmt.Errorf("field %s: %w", item.FieldRef.FieldPath, err)
			}
			if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(value), 0o644); err != nil {
				return fmt.Errorf("write the volume: %w", err)
			}
		}
	}
	return nil
}

// writeKeys writes the keys of the items, or all keys. A key that is missing keeps the pod from starting, as in the kubelet
// (pkg/volume/secret, MakePayload: "references non-existent secret key"), unless the source is optional.
func writeKeys(dir string, content map[string][]byte, items []corev1.KeyToPath, optional bool) error {
	names := map[string]string{}
	for key := range content {
		names[key] = key
	}
	if len(items) > 0 {
		clear(names)
		for _, item := range items {
			if _, found := content[item.Key]; !found && !optional {
				return fmt.Errorf("references non-existent key: %s", item.Key)
			} else if found {
				names[item.Key] = item.Path
			}
		}
	}
	for key, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write the volume: %w", err)
		}
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content[key]) {
			continue // unchanged files cause no event
		}
		if err := writeWhole(path, content[key]); err != nil {
			return err
		}
	}
	return nil
}

// token requests a token bound to the pod, writes it, and schedules its renewal after four fifths of its lifetime.
func (w *worker) token(ctx context.Context, path string, source *corev1.ServiceAccountTokenProjection) error {
	pod := w.pod()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	answer, err := w.node.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request,
		metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	if err := writeWhole(path, []byte(answer.Status.Token)); err != nil {
		return err
	}
	life := time.Until(answer.Status.ExpirationTimestamp.Time)
	timer := time.AfterFunc(life*4/5, func() {
		select {
		case <-w.deleted:
		case <-ctx.Done():
		default:
			if err := w.token(ctx, path, source); err != nil {
				w.node.warn(ctx, w.pod(), "FailedMount", err.Error())
			}
		}
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
	return nil
}

// writeWhole atomically replaces a file that others may read at any time.
func writeWhole(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
