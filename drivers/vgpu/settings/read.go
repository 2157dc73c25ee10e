package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/vgpu/annotation"
)

// deviceConfig is device-config.yaml. Pointers distinguish a missing field from zero.
type deviceConfig struct {
	NVIDIA struct {
		ResourceCountName            *string       `json:"resourceCountName"`
		ResourceMemoryName           *string       `json:"resourceMemoryName"`
		ResourceMemoryPercentageName *string       `json:"resourceMemoryPercentageName"`
		ResourceCoreName             *string       `json:"resourceCoreName"`
		ResourcePriorityName         *string       `json:"resourcePriorityName"`
		OverwriteEnv                 *bool         `json:"overwriteEnv"`
		DefaultMemory                *int64        `json:"defaultMemory"`
		DefaultCores                 *int          `json:"defaultCores"`
		DefaultGPUNum                *int          `json:"defaultGPUNum"`
		DeviceSplitCount             *int          `json:"deviceSplitCount"`
		DeviceMemoryScaling          *float64      `json:"deviceMemoryScaling"`
		DeviceCoreScaling            *float64      `json:"deviceCoreScaling"`
		DisableCoreLimit             *bool         `json:"disableCoreLimit"`
		GPUMemoryFactor              *int          `json:"gpuMemoryFactor"`
		PassDeviceSpecs              *bool         `json:"passDeviceSpecs"`
		KnownMIGGeometries           []modelConfig `json:"knownMigGeometries"`
	} `json:"nvidia"`
}

type modelConfig struct {
	Models            []string `json:"models"`
	AllowedGeometries []struct {
		Group      string `json:"group"`
		Geometries []struct {
			Name   string `json:"name"`
			Memory int64  `json:"memory"`
			Count  int    `json:"count"`
		} `json:"geometries"`
	} `json:"allowedGeometries"`
}

// ApplyDeviceConfig applies device-config.yaml to s. s changes only if the whole file is valid.
func (s *Settings) ApplyDeviceConfig(text []byte) error {
	var read deviceConfig
	if err := yaml.UnmarshalStrict(text, &read); err != nil {
		return fmt.Errorf("device-config.yaml: %w", err)
	}
	next, nvidia := *s, read.NVIDIA
	set(&next.NumberResource, nvidia.ResourceCountName)
	set(&next.MemoryResource, nvidia.ResourceMemoryName)
	set(&next.CoresResource, nvidia.ResourceCoreName)
	set(&next.PercentageResource, nvidia.ResourceMemoryPercentageName)
	set(&next.SplitCount, nvidia.DeviceSplitCount)
	set(&next.MemoryScaling, nvidia.DeviceMemoryScaling)
	set(&next.CoreScaling, nvidia.DeviceCoreScaling)
	set(&next.MemoryFactor, nvidia.GPUMemoryFactor)
	set(&next.NoCoreLimit, nvidia.DisableCoreLimit)
	if nvidia.KnownMIGGeometries != nil {
		next.Geometries = nil
		for _, model := range nvidia.KnownMIGGeometries {
			next.Geometries = append(next.Geometries, model.geometries())
		}
	}

	errs := []error{next.Validate()}
	// Volcano's webhook reads defaultGPUNum from the same ConfigMap. passDeviceSpecs is this plugin's behaviour in any case (device
	// nodes come through CDI or NRI). Both are accepted, and need no action.
	for field, value := range map[string]int64{"defaultMemory": deref(nvidia.DefaultMemory),
		"defaultCores": int64(deref(nvidia.DefaultCores))} {
		if value != 0 {
			errs = append(errs, fmt.Errorf("nvidia.%s: %d is not allowed; the scheduler decides on the share of a container without an amount, "+
				"and the node follows it: set 0, and set the amounts in the pods", field, value))
		}
	}
	if nvidia.OverwriteEnv != nil && *nvidia.OverwriteEnv {
		errs = append(errs, errors.New("nvidia.overwriteEnv: true is not allowed; containers without a share do not get a GPU here, so there "+
			"is no environment to overwrite: remove the key"))
	}
	if nvidia.ResourcePriorityName != nil && *nvidia.ResourcePriorityName != "" {
		errs = append(errs, fmt.Errorf("nvidia.resourcePriorityName: %q is not allowed; task priorities are not implemented: remove the key",
			*nvidia.ResourcePriorityName))
	}
	if nvidia.PassDeviceSpecs != nil && !*nvidia.PassDeviceSpecs {
		errs = append(errs, errors.New("nvidia.passDeviceSpecs: false is not allowed; device nodes are always passed: remove the key"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("device-config.yaml: %w", err)
	}
	*s = next
	return nil
}

func (m modelConfig) geometries() ModelGeometries {
	out := ModelGeometries{Models: m.Models}
	for _, group := range m.AllowedGeometries {
		geometry := Geometry{Name: group.Group}
		for _, g := range group.Geometries {
			geometry.Instances = append(geometry.Instances, Instances{Profile: g.Name, MemoryMiB: g.Memory, Count: g.Count})
		}
		out.Groups = append(out.Groups, geometry)
	}
	return out
}

// nodeConfigs is config.json.
type nodeConfigs struct {
	NodeConfig []nodeConfig `json:"nodeconfig"`
}

type nodeConfig struct {
	Name                string                     `json:"name"`
	OperatingMode       *annotation.Mode           `json:"operatingmode"`
	DeviceMemoryScaling *float64                   `json:"devicememoryscaling"`
	DeviceCoreScaling   *float64                   `json:"devicecorescaling"`
	DeviceSplitCount    *int                       `json:"devicesplitcount"`
	MIGStrategy         *string                    `json:"migstrategy"`
	FilterDevices       *filterDevices             `json:"filterdevices"`
	GPUModes            map[string]annotation.Mode `json:"gpumodes"` // ours: single GPUs that differ from operatingmode
}

type filterDevices struct {
	UUID  []string `json:"uuid"`
	Index []int    `json:"index"`
}

// ApplyNodeConfig applies the entry for node in config.json to s; a file without one changes nothing. It checks every entry, also
// those of other nodes. s changes only if the whole file is valid.
func (s *Settings) ApplyNodeConfig(text []byte, node string) error {
	var read nodeConfigs
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("config.json: the text after the object, at byte %d, would have no effect: remove it", decoder.InputOffset())
	}
	var all any
	errs, err := kjson.UnmarshalStrict(text, &all, kjson.DisallowDuplicateFields)
	if err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	for i, twice := range errs {
		errs[i] = fmt.Errorf("%w: the first would have no effect: remove one", twice)
	}
	chosen := *s
	seen := map[string]int{}
	for i, entry := range read.NodeConfig {
		at := fmt.Sprintf("nodeconfig[%d] (%q)", i, entry.Name)
		if entry.Name == "" {
			errs = append(errs, fmt.Errorf("%s: name is missing", at))
		}
		if first, twice := seen[entry.Name]; twice {
			errs = append(errs, fmt.Errorf("%s: nodeconfig[%d] is already for this node", at, first))
		}
		seen[entry.Name] = i
		next, err := entry.over(*s)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
		}
		if entry.Name == node {
			chosen = next
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	*s = chosen
	s.Misnamed = nil
	if _, named := seen[node]; named {
		return nil
	}
	for i, entry := range read.NodeConfig {
		if sameHost(entry.Name, node) {
			s.Misnamed = append(s.Misnamed, fmt.Sprintf("nodeconfig[%d] (%q)", i, entry.Name))
		}
	}
	return nil
}

// sameHost reports whether two names differ in case alone, or in one of them having a domain: node1 and node1.example.com.
func sameHost(a, b string) bool {
	firstA, domainA, _ := strings.Cut(a, ".")
	firstB, domainB, _ := strings.Cut(b, ".")
	return strings.EqualFold(firstA, firstB) && (domainA == "" || domainB == "" || strings.EqualFold(domainA, domainB))
}

func (n nodeConfig) over(s Settings) (Settings, error) {
	set(&s.Mode, n.OperatingMode)
	set(&s.MemoryScaling, n.DeviceMemoryScaling)
	set(&s.CoreScaling, n.DeviceCoreScaling)
	set(&s.SplitCount, n.DeviceSplitCount)
	if n.FilterDevices != nil {
		s.HiddenUUIDs, s.HiddenIndexes = n.FilterDevices.UUID, n.FilterDevices.Index
	}
	if n.GPUModes != nil {
		s.GPUModes = n.GPUModes
	}
	err := s.Validate()
	if n.MIGStrategy != nil && *n.MIGStrategy != "" && *n.MIGStrategy != "none" {
		err = errors.Join(err, fmt.Errorf("migstrategy: %q is not allowed; MIG instances of their own resources are claimed through the "+
			"DeviceClass mig.nvidia.com, and none is", *n.MIGStrategy))
	}
	return s, err
}

func deref[T any](value *T) (v T) {
	set(&v, value)
	return v
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}
