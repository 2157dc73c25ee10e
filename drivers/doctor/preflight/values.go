package preflight

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/doctor/platform"
)

// Values are the chart's values that checks and the Job depend on.
type Values struct {
	Image            Image                         `json:"image"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets"`
	Platform         string                        `json:"platform"`
	Hardware         Hardware                      `json:"hardware"`
	CDI              struct {
		Root string `json:"root"`
	} `json:"cdi"`
	NodePlugins struct {
		NodeSelector map[string]string   `json:"nodeSelector"`
		Tolerations  []corev1.Toleration `json:"tolerations"`
	} `json:"nodePlugins"`
	GPUs struct {
		Enabled      bool     `json:"enabled"`
		DevicePlugin []string `json:"devicePlugin"`
	} `json:"gpus"`
	CRDs struct {
		Install  bool `json:"install"`
		TakeOver bool `json:"takeOver"`
	} `json:"crds"`
	RDMA    enabled `json:"rdma"`
	VGPU    enabled `json:"vgpu"`
	Domains enabled `json:"computeDomains"`
	Take    bool    `json:"takeOver"`
	// preset is the platform's, which Read has applied to values that are empty.
	preset platform.Preset
}

// Image is the image with the program.
type Image struct {
	Repository string            `json:"repository"`
	Tag        string            `json:"tag"`
	Digest     string            `json:"digest"`
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
	CgroupRoot          string   `json:"cgroupRoot"`
	HostMounts          []string `json:"hostMounts"`
}

type enabled struct {
	Enabled bool `json:"enabled"`
}

// Defaults are the chart's own values; a test compares them with its values.yaml.
func Defaults() Values {
	v := Values{
		Image:    Image{Repository: "ghcr.io/gpufabric/gpufabric", PullPolicy: corev1.PullIfNotPresent},
		Platform: platform.Generic,
		Hardware: Hardware{
			DriverDirectories: []string{}, DriverContainerRoot: "/run/nvidia/driver",
			SysfsRoot: "/sys", DevRoot: "/dev", ProcDevices: "/proc/devices", CgroupRoot: "/sys/fs/cgroup",
		},
		Domains: enabled{true},
	}
	v.CRDs.Install = true
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
	if err := v.check(); err != nil {
		return v, err
	}
	return v, v.settle()
}

// settle gives values that are empty those of the platform, as the chart does.
func (v *Values) settle() error {
	preset, err := platform.Of(v.Platform)
	if err != nil {
		return err
	}
	v.preset = preset
	v.Hardware.DriverRoot = cmp.Or(v.Hardware.DriverRoot, preset.DriverRoot)
	if len(v.Hardware.DriverDirectories) == 0 {
		v.Hardware.DriverDirectories = preset.DriverDirectories
	}
	v.CDI.Root = cmp.Or(v.CDI.Root, preset.CDIRoot)
	v.NodePlugins.Tolerations = slices.Concat(v.NodePlugins.Tolerations, preset.Tolerations)
	return nil
}

// absolutePath, directoryOnNode and optionalDirectory are the patterns of the chart's schema for paths of the node; a test compares them.
// No part of a path is . or .., which would lead elsewhere than a reader thinks: /usr/.. is the node's /.
const (
	part              = `([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)`
	absolutePath      = "^(/(" + part + "(/" + part + ")*)?)?$"
	directoryOnNode   = "^(/" + part + ")+$"
	optionalDirectory = "^((/" + part + ")+)?$"
)

// check refuses paths that the chart's schema refuses: the Jobs mount them.
func (v Values) check() error {
	h := v.Hardware
	var errs []error
	see := func(field, pattern, value string) {
		if !regexp.MustCompile(pattern).MatchString(value) {
			errs = append(errs, fmt.Errorf("hardware.%s: %q: want an absolute path of a node's directory without . and .., such as /usr",
				field, value))
		}
	}
	see("driverRoot", absolutePath, h.DriverRoot)
	see("driverContainerRoot", optionalDirectory, h.DriverContainerRoot)
	see("sysfsRoot", absolutePath, h.SysfsRoot)
	see("devRoot", absolutePath, h.DevRoot)
	see("procDevices", absolutePath, h.ProcDevices)
	for i, directory := range h.DriverDirectories {
		see(fmt.Sprintf("driverDirectories[%d]", i), directoryOnNode, directory)
	}
	for i, directory := range h.HostMounts {
		see(fmt.Sprintf("hostMounts[%d]", i), directoryOnNode, directory)
	}
	return errors.Join(errs...)
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

// useGPUs reports whether an enabled component needs NVIDIA's driver.
func (v Values) useGPUs() bool { return v.GPUs.Enabled || v.VGPU.Enabled || v.Domains.Enabled }
