// Package settings reads how a node's GPUs are shared: the two ConfigMaps of clusters with the public vGPU plugin
// (volcano-vgpu-device-config with device-config.yaml, volcano-vgpu-node-config with config.json), and flags, which take
// precedence.
//
// It reports every mistake at once, with its place. It refuses a key that would have no effect instead of ignoring it.
package settings

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/vgpu/annotation"
)

// Settings are how one node shares its GPUs.
type Settings struct {
	// The extended resources: containers sharing a GPU, memory in units of MemoryFactor MiB, percent of a GPU's SMs, percent of its memory.
	NumberResource, MemoryResource, CoresResource, PercentageResource string
	// SplitCount is how many containers may share one GPU.
	SplitCount int
	// MemoryScaling and CoreScaling promise a multiple of a GPU's capacity; with 1 nothing is oversubscribed.
	MemoryScaling, CoreScaling float64
	// MemoryFactor is the size of a unit of memory in MiB; 0 leaves it to package units.
	MemoryFactor int
	// NoCoreLimit leaves a container's share of SMs unlimited, whatever its request.
	NoCoreLimit bool
	// Scheduler places the pods; empty: no checks for a scheduler.
	Scheduler Scheduler
	// Mode is how the node's GPUs are shared; GPUModes overrides it for single GPUs, by UUID.
	Mode     annotation.Mode
	GPUModes map[string]annotation.Mode
	// HiddenUUIDs and HiddenIndexes are GPUs that are not offered for sharing.
	HiddenUUIDs   []string
	HiddenIndexes []int
	// Misnamed are entries of config.json that seem to be for this node, under another name, where none has its name: nodeconfig[0] ("node1").
	Misnamed []string
	// Geometries are the MIG layouts that an administrator allows, by model; a model without any uses NVML's placements.
	Geometries []ModelGeometries
}

// ModelGeometries are the MIG layouts allowed for some models, first choice first.
type ModelGeometries struct {
	Models []string // parts of NVML's product name
	Groups []Geometry
}

// Geometry is one layout of a GPU.
type Geometry struct {
	Name      string
	Instances []Instances
}

// Instances are equal MIG instances of a layout.
type Instances struct {
	Profile   string // "1g.5gb"
	MemoryMiB int64
	Count     int
}

// Default is the public plugin's behaviour without configuration, except the memory factor, which it fixes at 1.
func Default() Settings {
	return Settings{
		NumberResource: "volcano.sh/vgpu-number", MemoryResource: "volcano.sh/vgpu-memory", CoresResource: "volcano.sh/vgpu-cores",
		PercentageResource: "volcano.sh/vgpu-memory-percentage",
		SplitCount:         10, MemoryScaling: 1, CoreScaling: 1, Mode: annotation.ModeSoftware,
	}
}

// Bounds, with their reasons.
const (
	maximumSplit   = 1000 // a GPU runs out of contexts long before; the list of IDs would grow
	maximumScaling = 100
	maximumFactor  = 1 << 20 // MiB: a TiB
)

var (
	resourceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	profileName  = regexp.MustCompile(`^[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z.]+)*$`)
)

// Validate reports all mistakes, each with its field, its value and the allowed values.
func (s *Settings) Validate() error {
	var errs []error
	wrong := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("%s: %v is not allowed; %s", field, value, allowed))
	}
	used := map[string]string{}
	for _, one := range s.resources() {
		field, name := one[0], one[1]
		if !resourceName.MatchString(name) {
			wrong(field, fmt.Sprintf("%q", name), "an extended resource such as volcano.sh/vgpu-number is")
		} else if other, twice := used[name]; twice {
			wrong(field, name, "it is "+other+" already, and each resource needs a name of its own")
		}
		used[name] = field
	}
	if s.SplitCount < 1 || s.SplitCount > maximumSplit {
		wrong("deviceSplitCount", s.SplitCount, fmt.Sprintf("1 to %d containers on a GPU are", maximumSplit))
	}
	for field, scaling := range map[string]float64{"deviceMemoryScaling": s.MemoryScaling, "deviceCoreScaling": s.CoreScaling} {
		// The comparison is written so that NaN fails it.
		if !(scaling > 0 && scaling <= maximumScaling) {
			wrong(field, scaling, fmt.Sprintf("more than 0 and at most %d is", maximumScaling))
		}
	}
	if s.MemoryFactor < 0 || s.MemoryFactor > maximumFactor {
		wrong("gpuMemoryFactor", s.MemoryFactor, fmt.Sprintf("0 (chosen automatically) to %d MiB are", maximumFactor))
	}
	if !knownMode(s.Mode) {
		wrong("operatingmode", fmt.Sprintf("%q", s.Mode), "hami-core and mig are")
	}
	for uuid, mode := range s.GPUModes {
		if !annotation.ValidUUID(uuid) || !knownMode(mode) {
			wrong("gpumodes["+uuid+"]", fmt.Sprintf("%q", mode), "a GPU's UUID with hami-core or mig is")
		}
	}
	for i, uuid := range s.HiddenUUIDs {
		if !annotation.ValidUUID(uuid) {
			wrong(fmt.Sprintf("filterdevices.uuid[%d]", i), fmt.Sprintf("%q", uuid), "a GPU's UUID as nvidia-smi -L prints it is")
		}
	}
	for i, index := range s.HiddenIndexes {
		if index < 0 {
			wrong(fmt.Sprintf("filterdevices.index[%d]", i), index, "an index from 0 is")
		}
	}
	return errors.Join(append(errs, validateGeometries(s.Geometries)...)...)
}

func validateGeometries(models []ModelGeometries) []error {
	var errs []error
	for m, model := range models {
		at := fmt.Sprintf("knownMigGeometries[%d]", m)
		if len(model.Models) == 0 || slices.Contains(model.Models, "") {
			errs = append(errs, fmt.Errorf("%s.models: at least one product name, none of them empty, is needed", at))
		}
		if len(model.Groups) == 0 {
			errs = append(errs, fmt.Errorf("%s.allowedGeometries: at least one geometry is needed", at))
		}
		places := map[string]int{}
		for g, group := range model.Groups {
			if err := validateGroup(group.Name, g, places); err != nil {
				errs = append(errs, fmt.Errorf("%s.allowedGeometries[%d].group: %w", at, g, err))
			}
			if len(group.Instances) == 0 {
				errs = append(errs, fmt.Errorf("%s.allowedGeometries[%d] (%q): at least one kind of instance is needed", at, g, group.Name))
			}
			for i, instances := range group.Instances {
				if !profileName.MatchString(instances.Profile) || instances.MemoryMiB <= 0 || instances.Count < 1 || instances.Count > 7 {
					errs = append(errs, fmt.Errorf("%s.allowedGeometries[%d].geometries[%d]: %+v is not allowed; a name such as 1g.5gb, its memory in "+
						"MiB and a count of 1 to 7 are",
						at, g, i, instances))
				}
			}
		}
	}
	return errs
}

// validateGroup refuses a geometry's name that could match no slot, or the wrong one: the annotation has either the name or the
// place.
func validateGroup(name string, place int, places map[string]int) error {
	if name == "" {
		return nil // known by its place alone
	}
	if !annotation.ValidGroup(name) {
		return fmt.Errorf("%q is not allowed; letters, digits, dots, underscores and plus signs are, since Volcano does not read slots of "+
			"other names",
			name)
	}
	if first, twice := places[name]; twice {
		return fmt.Errorf("%q is the name of geometry %d already", name, first)
	}
	places[name] = place
	if number, err := strconv.Atoi(name); err == nil && number != place {
		return fmt.Errorf("%q is a number and not this geometry's place, %d; give it another name", name, place)
	}
	return nil
}

// resources are the extended resources by the keys of the configuration file.
func (s *Settings) resources() [][2]string {
	return [][2]string{{"resourceCountName", s.NumberResource}, {"resourceMemoryName", s.MemoryResource},
		{"resourceCoreName", s.CoresResource}, {"resourceMemoryPercentageName", s.PercentageResource}}
}

// CheckVolcano refuses settings that Volcano's scheduler does not support: the names of its resources are constants there
// (config.VolcanoVGPUNumber and the others).
func (s *Settings) CheckVolcano() error {
	var errs []error
	standard := Default()
	for i, want := range standard.resources() {
		if got := s.resources()[i]; got[1] != want[1] {
			errs = append(errs, fmt.Errorf("%s: %q is not allowed where Volcano schedules, which supports only %s: remove the key, or choose "+
				"another scheduler (--scheduler=gpufabric)", got[0], got[1], want[1]))
		}
	}
	return errors.Join(errs...)
}

// Scheduler is the scheduler of pods with shares.
type Scheduler string

// The known schedulers.
const (
	Volcano   Scheduler = "volcano"
	GPUFabric Scheduler = "gpufabric"
)

func knownMode(m annotation.Mode) bool {
	return m == annotation.ModeSoftware || m == annotation.ModeMIG
}

// Hides reports whether a GPU is excluded from sharing.
func (s *Settings) Hides(uuid string, index int) bool {
	return slices.Contains(s.HiddenUUIDs, uuid) || slices.Contains(s.HiddenIndexes, index)
}

// ModeOf is how a GPU is shared.
func (s *Settings) ModeOf(uuid string) annotation.Mode {
	if mode, ok := s.GPUModes[uuid]; ok {
		return mode
	}
	return s.Mode
}

// Shadowed returns the product names of knownMigGeometries that can never be chosen: of a product that has such a name an earlier entry has
// a part of it.
func (s *Settings) Shadowed() []string {
	var out []string
	for m, model := range s.Geometries {
		for _, name := range model.Models {
			for earlier := range m {
				i := slices.IndexFunc(s.Geometries[earlier].Models, func(other string) bool { return strings.Contains(name, other) })
				if i >= 0 {
					out = append(out, fmt.Sprintf("knownMigGeometries[%d].models %q is never used: such a GPU has the layouts of "+
						"knownMigGeometries[%d], for %q; put the longer name first", m, name, earlier, s.Geometries[earlier].Models[i]))
					break
				}
			}
		}
	}
	return out
}

// GeometriesOf returns the layouts allowed for a product, first choice first; none where the administrator named none for it.
func (s *Settings) GeometriesOf(product string) []Geometry {
	for _, model := range s.Geometries {
		for _, name := range model.Models {
			if strings.Contains(product, name) {
				return model.Groups
			}
		}
	}
	return nil
}
