package preflight

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Values are the chart's values that checks and the Job depend on.
type Values struct {
	Image            Image                         `json:"image"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets"`
	Hardware         Hardware                      `json:"hardware"`
	NodePlugins      struct {
		NodeSelector map[string]string   `json:"nodeSelector"`
		Tolerations  []corev1.Toleration `json:"tolerations"`
	} `json:"nodePlugins"`
	GPUs    enabled `json:"gpus"`
	RDMA    enabled `json:"rdma"`
	VGPU    enabled `json:"vgpu"`
	Domains enabled `json:"computeDomains"`
	Take    bool    `json:"takeOver"`
}

// Image is the image with the program.
type Image struct {
	Repository string            `json:"repository"`
	Tag        string            `json:"tag"`
	PullPolicy corev1.PullPolicy `json:"pullPolicy"`
}

// Hardware is where a node has its hardware; all are paths on the node.
type Hardware struct {
	DriverRoot          string   `json:"driverRoot"`
	DriverDirectories   []string `json:"driverDirectories"`
	DriverContainerRoot string   `json:"driverContainerRoot"`
	SysfsRoot           string   `json:"sysfsRoot"`
	DevRoot             string   `json:"devRoot"`
	ProcDevices         string   `json:"procDevices"`
	HostMounts          []string `json:"hostMounts"`
}

type enabled struct {
	Enabled bool `json:"enabled"`
}

// Defaults are the chart's own values; a test compares them with its values.yaml.
func Defaults() Values {
	v := Values{
		Image: Image{Repository: "ghcr.io/gpufabric/gpufabric", PullPolicy: corev1.PullIfNotPresent},
		Hardware: Hardware{
			DriverRoot: "/", DriverDirectories: []string{"/usr", "/etc/alternatives"}, DriverContainerRoot: "/run/nvidia/driver",
			SysfsRoot: "/sys", DevRoot: "/dev", ProcDevices: "/proc/devices",
		},
		Domains: enabled{true},
	}
	v.NodePlugins.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
	return v
}

// Read applies values in YAML to the chart's own, as Helm merges them. It ignores fields that no check needs: the chart's schema
// validates those.
func Read(text []byte) (Values, error) {
	var v Values
	var own, merged map[string]any
	if err := yaml.Unmarshal(text, &own); err != nil {
		return v, fmt.Errorf("read the values: %w", err)
	}
	// A struct with the defaults in it would not do: JSON decoding reuses existing elements of a list.
	defaults, err := json.Marshal(Defaults())
	if err == nil {
		err = json.Unmarshal(defaults, &merged)
	}
	if err == nil {
		merge(merged, own)
		defaults, err = json.Marshal(merged)
	}
	if err == nil {
		err = json.Unmarshal(defaults, &v)
	}
	if err != nil {
		return v, fmt.Errorf("read the values: %w", err)
	}
	return v, nil
}

// merge applies values to others: maps key by key, everything else as a whole. Null removes a key.
func merge(into, over map[string]any) {
	for key, value := range over {
		inner, isMap := value.(map[string]any)
		there, wasMap := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			merge(there, inner)
		default:
			into[key] = value
		}
	}
}

// useGPUs says whether an enabled component needs NVIDIA's driver.
func (v Values) useGPUs() bool { return v.GPUs.Enabled || v.VGPU.Enabled || v.Domains.Enabled }
