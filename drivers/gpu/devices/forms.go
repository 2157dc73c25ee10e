package devices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/gpu/inventory"
)

// Mode is one word for the forms in which a GPU is offered.
type Mode string

// The modes. A scheduler considers every device and every counter of a node for each pod, so each mode beyond Whole costs time for
// every pod of the cluster (docs/scheduling.md has the figures).
const (
	// ModeWhole offers the whole GPU, to one claim at a time. It does not use counters.
	ModeWhole Mode = "whole"
	// ModeShareable offers one device. A plain claim has it whole; claims that request memory share it. It does not use counters.
	ModeShareable Mode = "shareable"
	// ModeShares offers one device with a number of equal shares, of which a plain claim takes one, as the NVIDIA driver's
	// consumableShares does. A share has no limit except the memory that its claim requests. It does not use counters.
	ModeShares Mode = "shares"
	// ModeMIG offers only the placements of named MIG profiles. It uses counters where placements exclude each other.
	ModeMIG Mode = "mig"
	// ModeProfiles offers only the shares of the VGPUProfiles that select the node.
	ModeProfiles Mode = "profiles"
	// ModeFlexible offers everything at once: whole, shared, and every placement of every MIG profile. All use the GPU's counters.
	ModeFlexible Mode = "flexible"
	// ModeVFIO offers whole GPUs to virtual machines, and nothing else. Package passthrough offers them, without NVML.
	ModeVFIO Mode = "vfio"
)

// Modes are all modes, in the order in which messages name them.
func Modes() []Mode {
	return []Mode{ModeWhole, ModeShareable, ModeShares, ModeMIG, ModeProfiles, ModeFlexible, ModeVFIO}
}

// Forms are the forms in which the GPUs of a node are offered. The zero value is ModeWhole.
type Forms struct {
	Mode Mode `json:"form"`
	// MIGProfiles are the MIG profiles of ModeMIG, as NVML names them ("1g.10gb", "1g.10gb+me"); no other mode has any.
	MIGProfiles []string `json:"migProfiles,omitempty"`
	// Shares is the number of shares of a GPU of ModeShares, 1 to MaxShares; no other mode has any.
	Shares int `json:"shares,omitempty"`
}

// MaxShares is the maximum number of shares of a GPU. It is far above useful values, for users who want no limit.
const MaxShares = 10_000

// ParseForms reads Forms from a label's value: a mode, after mig its profiles, after shares their number, all joined by "_". A
// label cannot hold the plus sign of "1g.10gb+me"; a dash replaces it.
func ParseForms(text string) (Forms, error) {
	words := strings.Split(text, "_")
	f := Forms{Mode: Mode(words[0])}
	switch {
	case len(words) == 1:
	case f.Mode == ModeShares && len(words) == 2:
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return f, fmt.Errorf("form shares of %q: want a number of shares, such as shares_4", words[1])
		}
		f.Shares = n
	default:
		f.MIGProfiles = words[1:]
	}
	return f, f.Validate()
}

// Validate returns the first mistake of the forms. Only the node can check whether a GPU has the profiles.
func (f Forms) Validate() error {
	switch {
	case !slices.Contains(Modes(), f.mode()):
		return fmt.Errorf("form %q: allowed are %s", f.Mode, joined(Modes(), ", "))
	case f.Mode == ModeMIG && len(f.MIGProfiles) == 0:
		return fmt.Errorf("form mig needs a MIG profile: name at least one, such as 1g.10gb (nvidia-smi mig -lgip lists them)")
	case f.Mode != ModeMIG && len(f.MIGProfiles) > 0:
		return fmt.Errorf("form %s with the MIG profiles %s: only form mig has profiles", f.mode(), strings.Join(f.MIGProfiles, ", "))
	case f.Mode == ModeShares && (f.Shares < 1 || f.Shares > MaxShares):
		return fmt.Errorf("form shares with %d shares: a GPU has 1 to %d", f.Shares, MaxShares)
	case f.Mode != ModeShares && f.Shares != 0:
		return fmt.Errorf("form %s with %d shares: only form shares has a number of them", f.mode(), f.Shares)
	}
	for i, name := range f.MIGProfiles {
		if name == "" || slices.Contains(f.MIGProfiles[:i], name) {
			return fmt.Errorf("MIG profile %q: must be a name, and be listed once", name)
		}
	}
	return nil
}

// Equal reports whether both offer the same.
func (f Forms) Equal(o Forms) bool {
	return f.mode() == o.mode() && f.Shares == o.Shares && slices.Equal(f.MIGProfiles, o.MIGProfiles)
}

// String writes the forms as ParseForms reads them.
func (f Forms) String() string {
	words := append([]string{string(f.mode())}, f.MIGProfiles...)
	if f.Shares != 0 {
		words = append(words, strconv.Itoa(f.Shares))
	}
	return plain(strings.Join(words, "_"))
}

func (f Forms) mode() Mode {
	if f.Mode == "" {
		return ModeWhole
	}
	return f.Mode
}

// profiles returns the profiles of a GPU that the forms name, smallest first, and the names that the GPU does not have.
func (f Forms) profiles(g *inventory.GPU) (found []inventory.Profile, missing []string) {
	for _, name := range f.MIGProfiles {
		i := -1
		if g.MIG != nil {
			i = slices.IndexFunc(g.MIG.Profiles, func(p inventory.Profile) bool { return plain(p.Name) == plain(name) })
		}
		if i < 0 {
			missing = append(missing, name)
			continue
		}
		found = append(found, g.MIG.Profiles[i])
	}
	return bySize(found), missing
}

// plain writes a profile's name in a form that a label can hold.
func plain(profile string) string { return strings.ReplaceAll(profile, "+", "-") }

func joined[T ~string](words []T, separator string) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, separator)
}
