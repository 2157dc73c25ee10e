// Package annotation reads and writes the annotations that a vGPU node shares with Volcano's scheduler, or this project's. They have
// the GPUs of a node, a sign of life, and the shares of each container of a pod. HAMi's own scheduler
// uses other keys (hami.io/*) and other resources, which this package does not read.
//
// Everything read here was written by another program. A malformed value is an error that quotes the wrong part, never a guess.
package annotation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Annotation keys, as Volcano uses them.
const (
	NodeRegister  = "volcano.sh/node-vgpu-register"  // plugin -> scheduler: the node's GPUs
	NodeHandshake = "volcano.sh/node-vgpu-handshake" // both ways, Volcano 1.15 and earlier

	PodNode     = "volcano.sh/vgpu-node"             // the node of the devices
	PodTime     = "volcano.sh/vgpu-time"             // when the scheduler chose, Unix seconds
	PodDevices  = "volcano.sh/vgpu-ids-new"          // the shares of each container; permanent
	PodPending  = "volcano.sh/devices-to-allocate"   // the same, until the plugin has processed it
	BindPhase   = "volcano.sh/bind-phase"            // allocating | success | failed
	BindTime    = "volcano.sh/bind-time"             // Unix seconds
	PodMode     = "volcano.sh/vgpu-mode"             // hami-core | mig
	PodGroup    = "volcano.sh/vgpu-podgroup-policy"  // spread: no GPU with another pod of the group
	GroupName   = "scheduling.k8s.io/group-name"     // the pod's PodGroup, in its namespace
	VolcanoName = "scheduling.volcano.sh/group-name" // the same, in the name of Volcano's own API group (v1beta1/labels.go)
	UseUUID     = "volcano.sh/vgpu-use-gpuuuid"      // comma-separated
	AvoidUUID   = "volcano.sh/vgpu-nouse-gpuuuid"    // comma-separated
	UseType     = "nvidia.com/use-gputype"           // comma-separated model names
	AvoidType   = "nvidia.com/nouse-gputype"         // comma-separated model names
	NodeLock    = "hamivgpu"                         // an RFC 3339 time while a pod is being bound to the node
	BindSuccess = "success"
	BindFailed  = "failed"
)

// Mode describes how a GPU is shared.
type Mode string

// The modes of Volcano.
const (
	ModeSoftware Mode = "hami-core" // a library inside the container enforces the limits
	ModeMIG      Mode = "mig"       // a MIG instance each
)

// GPU is one GPU as a node registers it.
type GPU struct {
	UUID    string
	Slots   int    // how many containers may share it
	Memory  int64  // in units of the node's memory factor (package units), not in MiB
	Model   string // as NVML names it, without "NVIDIA " in front, spaces kept
	Healthy bool
	Mode    Mode
}

// FormatGPUs writes the value of NodeRegister: one GPU after another, each ended by a colon. The position is the scheduler's index.
func FormatGPUs(gpus []GPU) string {
	var b strings.Builder
	for _, gpu := range gpus {
		fmt.Fprintf(&b, "%s,%d,%d,NVIDIA-%s,%t,%s:", gpu.UUID, gpu.Slots, gpu.Memory, model(gpu.Model), gpu.Healthy, gpu.Mode)
	}
	return b.String()
}

// model removes separators from a model name: they would shift every field after it.
func model(name string) string {
	name = strings.TrimPrefix(strings.TrimSpace(name), "NVIDIA ")
	return strings.NewReplacer(",", " ", ":", " ", ";", " ").Replace(name)
}

// Share is a container's share of one GPU, as the scheduler wrote it.
type Share struct {
	UUID   string
	Memory int64 // in units of the node's memory factor; 0: the whole GPU's
	Cores  int   // percent of the GPU's SMs; 0: unlimited
	// Slot names a MIG instance in Volcano's encoding `UUID[group-position]`; nil for a software share.
	Slot *MIGSlot
}

// MIGSlot is an instance by its place in one of the geometries that the GPU's model allows.
type MIGSlot struct {
	// Group is a geometry's name, as Volcano writes it (`[group1-0]`), or its place in the list, counted from 0, as our scheduler does.
	Group string
	// Position is which instance of that geometry, counted in the geometry's order.
	Position int
}

// SlotAt is the slot at a position in the geometry with that place in the list.
func SlotAt(group, position int) *MIGSlot {
	return &MIGSlot{Group: strconv.Itoa(group), Position: position}
}

// Place is the index of the slot's geometry in a list of geometries with these names. The list is nil where no geometry is
// known. A name takes precedence over a number.
func (s MIGSlot) Place(names []string) (int, bool) {
	if at := slices.Index(names, s.Group); at >= 0 {
		return at, true
	}
	at, err := strconv.Atoi(s.Group)
	return at, err == nil && at >= 0
}

func (s MIGSlot) String() string { return fmt.Sprintf("[%s-%d]", s.Group, s.Position) }

// ValidGroup reports whether a geometry's name may be used in an annotation: letters, digits, dots, underscores and plus signs.
// Volcano does not parse a slot whose geometry has a dash in its name.
func ValidGroup(name string) bool {
	return name != "" && len(name) <= maximumGroup && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '.' && c != '_' && c != '+'
	})
}

// Limits on a pod's annotation, so that a hostile one costs little.
const (
	maximumLength = 256 << 10 // the API server's own limit on all annotations together
	maximumShares = 64        // GPUs for one container; no node has more
	maximumGroup  = 63        // bytes of a geometry's name
	maximumMemory = 1 << 32   // units of at least 1 MiB; the sum of as many shares as fit in an annotation is far from overflowing
)

// FormatShares writes the value of PodDevices and PodPending: containers separated by semicolons, in the pod's order, init
// containers first. A container without shares has an empty place; Volcano omits such a container.
func FormatShares(containers [][]Share) string {
	var b strings.Builder
	for _, shares := range containers {
		for _, share := range shares {
			b.WriteString(share.UUID)
			if share.Slot != nil {
				b.WriteString(share.Slot.String())
			}
			fmt.Fprintf(&b, ",NVIDIA,%d,%d:", share.Memory, share.Cores)
		}
		b.WriteByte(';')
	}
	return b.String()
}

// ParseShares reads the value of PodDevices or PodPending: one element per container, in the annotation's order.
func ParseShares(value string) ([][]Share, error) {
	if len(value) > maximumLength {
		return nil, fmt.Errorf("devices annotation of %d bytes, where at most %d are read", len(value), maximumLength)
	}
	if value == "" {
		return nil, nil
	}
	var containers [][]Share
	for i, part := range strings.Split(strings.TrimSuffix(value, ";"), ";") {
		var shares []Share
		for _, field := range strings.Split(part, ":") {
			if field = strings.TrimSpace(field); field == "" {
				continue
			}
			if len(shares) == maximumShares {
				return nil, fmt.Errorf("container %d: more than %d devices", i, maximumShares)
			}
			share, err := parseShare(field)
			if err != nil {
				return nil, fmt.Errorf("container %d: device %q: %w", i, shorten(field), err)
			}
			shares = append(shares, share)
		}
		containers = append(containers, shares)
	}
	return containers, nil
}

func parseShare(field string) (Share, error) {
	parts := strings.Split(field, ",")
	if len(parts) != 4 {
		return Share{}, fmt.Errorf("%d fields, where UUID,NVIDIA,memory,cores are 4", len(parts))
	}
	if parts[1] != "NVIDIA" {
		return Share{}, fmt.Errorf("vendor %q, where only NVIDIA is supported", shorten(parts[1]))
	}
	share := Share{UUID: parts[0]}
	if id, slot, found := strings.Cut(parts[0], "["); found {
		parsed, err := parseSlot(slot)
		if err != nil {
			return Share{}, err
		}
		share.UUID, share.Slot = id, parsed
	}
	if !ValidUUID(share.UUID) {
		return Share{}, fmt.Errorf("%q is not a GPU's UUID (GPU- and hexadecimal digits)", shorten(share.UUID))
	}
	memory, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || memory < 0 || memory > maximumMemory {
		return Share{}, fmt.Errorf("memory %q, where a whole number of units from 0 to %d is allowed", shorten(parts[2]), int64(maximumMemory))
	}
	cores, err := strconv.Atoi(parts[3])
	if err != nil || cores < 0 || cores > 100 {
		return Share{}, fmt.Errorf("cores %q, where 0 to 100 percent are allowed", shorten(parts[3]))
	}
	share.Memory, share.Cores = memory, cores
	return share, nil
}

func parseSlot(text string) (*MIGSlot, error) {
	inner, closed := strings.CutSuffix(text, "]")
	group, position, dashed := strings.Cut(inner, "-")
	p, err := strconv.Atoi(position)
	if !closed || !dashed || !ValidGroup(group) || err != nil || p < 0 {
		return nil, fmt.Errorf("MIG slot %q, where [group-position] is expected", shorten("["+text))
	}
	return &MIGSlot{Group: group, Position: p}, nil
}

// ValidUUID reports whether s may be a GPU's UUID as NVML prints it: "GPU-" or "MIG-" and hexadecimal digits with dashes. It keeps a
// tenant's text out of file names and environment variables.
func ValidUUID(s string) bool {
	digits, ok := strings.CutPrefix(s, "GPU-")
	if !ok {
		digits, ok = strings.CutPrefix(s, "MIG-")
	}
	if !ok || len(digits) < 8 || len(digits) > 36 {
		return false
	}
	for _, c := range digits {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') && c != '-' {
			return false
		}
	}
	return true
}

func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
