package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/vgpu/settings"
)

// The ConfigMaps of clusters with the public plugin, and their keys. Volcano's scheduler reads the first.
const (
	deviceConfigMap, deviceConfigKey = "volcano-vgpu-device-config", "device-config.yaml"
	nodeConfigMap, nodeConfigKey     = "volcano-vgpu-node-config", "config.json"
)

// settings reads the configuration: the ConfigMaps in Volcano's namespace, mounted files where there are none, and then the flags,
// which take precedence.
func (o *Options) settings(ctx context.Context, client kubernetes.Interface) (settings.Settings, error) {
	s := settings.Default()
	s.Scheduler = settings.Scheduler(o.Scheduler)
	for _, source := range []struct {
		configMap, key, path string
		apply                func([]byte) error
	}{
		{deviceConfigMap, deviceConfigKey, o.DeviceConfig, s.ApplyDeviceConfig},
		{nodeConfigMap, nodeConfigKey, o.NodeConfig, func(text []byte) error { return s.ApplyNodeConfig(text, o.NodeName) }},
	} {
		text, where, err := o.configuration(ctx, client, source.configMap, source.key, source.path)
		if err == nil && text != nil {
			err = source.apply(text)
		}
		if err != nil {
			return s, fmt.Errorf("configuration %s: %w", where, err)
		}
	}
	if o.flags.Changed("device-split-count") {
		s.SplitCount = o.split
	}
	if o.flags.Changed("gpu-memory-factor") {
		s.MemoryFactor = o.factor
	}
	if o.flags.Changed("device-memory-scaling") {
		s.MemoryScaling = o.memory
	}
	if o.flags.Changed("device-cores-scaling") {
		s.CoreScaling = o.cores
	}
	err := s.Validate()
	if s.Scheduler == settings.Volcano {
		err = errors.Join(err, s.CheckVolcano())
	}
	return s, err
}

// configuration is the text of one source, nil where there is none, and its place.
func (o *Options) configuration(ctx context.Context, client kubernetes.Interface, name, key, path string) ([]byte, string, error) {
	if o.ConfigNamespace != "" {
		where := fmt.Sprintf("ConfigMap %s/%s", o.ConfigNamespace, name)
		found, err := client.CoreV1().ConfigMaps(o.ConfigNamespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			text, has := found.Data[key]
			if !has {
				return nil, where, fmt.Errorf("it has no key %s", key)
			}
			return []byte(text), where, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, where, err
		}
	}
	if path == "" {
		return nil, "", nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, path, nil // the ConfigMap is optional
	}
	return text, path, err
}
