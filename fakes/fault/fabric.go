package fault

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpufabric.io/fakes/state"
)

// healthField is a field of NVML's mask of fabric health (NVML_GPU_FABRIC_HEALTH_MASK_* of nvml.h), with its values for a problem and for
// none.
type healthField struct {
	shift, width   uint32
	problem, right uint32
	// summary is NVML's summary while the problem lasts. nvml.h has no rule for it; this one is the fake's own.
	summary uint32
}

// NVML_GPU_FABRIC_HEALTH_SUMMARY_*.
const (
	summaryHealthy         = 1
	summaryUnhealthy       = 2
	summaryLimitedCapacity = 3
)

// healthFields are the problems that a fabric can have, by their names. Those of the configuration share one field.
func healthFields() map[string]healthField {
	return map[string]healthField{
		"bandwidth":                   {0, 0x3, 1, 2, summaryLimitedCapacity},
		"route-recovery":              {2, 0x3, 1, 2, summaryUnhealthy},
		"route-unhealthy":             {4, 0x3, 1, 2, summaryUnhealthy},
		"access-timeout-recovery":     {6, 0x3, 1, 2, summaryUnhealthy},
		"incorrect-system-guid":       {8, 0xf, 2, 1, summaryUnhealthy},
		"incorrect-chassis-serial":    {8, 0xf, 3, 1, summaryUnhealthy},
		"no-partition":                {8, 0xf, 4, 1, summaryUnhealthy},
		"insufficient-nvlinks":        {8, 0xf, 5, 1, summaryUnhealthy},
		"incompatible-gpu-firmware":   {8, 0xf, 6, 1, summaryUnhealthy},
		"invalid-location":            {8, 0xf, 7, 1, summaryUnhealthy},
		"gpu-state-invalid":           {8, 0xf, 8, 1, summaryUnhealthy},
		"partition-unassigned":        {12, 0x3, 2, 1, summaryUnhealthy},
		"fabric-manager-disconnected": {14, 0x3, 2, 1, summaryUnhealthy},
	}
}

func healthNames() string { return strings.Join(slices.Sorted(maps.Keys(healthFields())), ", ") }

// value is the field's value with the problem, or without it.
func (f healthField) value(problem bool) uint32 {
	if problem {
		return f.problem
	}
	return f.right
}

// of reads the field; 0: the machine does not report it.
func (f healthField) of(core *state.Core) uint32 { return core.FabricHealth >> f.shift & f.width }

// setHealth sets a field, where the machine reports it, and the summary of all, where it reports that.
func setHealth(core *state.Core, f healthField, value uint32) {
	if f.of(core) != 0 {
		core.FabricHealth = core.FabricHealth&^(f.width<<f.shift) | value<<f.shift
	}
	if core.FabricSummary == 0 {
		return
	}
	core.FabricSummary = summaryHealthy
	for _, each := range healthFields() {
		if each.of(core) == each.problem && core.FabricSummary != summaryUnhealthy {
			core.FabricSummary = each.summary
		}
	}
	if core.FabricSummary == summaryHealthy && f.value(true) == value {
		core.FabricSummary = f.summary // a machine may report the summary alone
	}
}

func fabricHealth(c *change) error {
	f, ok := healthFields()[c.args["problem"]]
	if !ok {
		return fmt.Errorf("problem is %q, want one of %s", c.args["problem"], healthNames())
	}
	present, err := c.flag("present")
	if err != nil {
		return err
	}
	one := -1
	if c.args["gpu"] != "all" {
		if one, err = c.gpu(); err != nil {
			return err
		}
	}
	return c.file.Update(func(b *state.Body) error {
		changed := false
		for i, g := range b.GPUs {
			if one >= 0 && i != one {
				continue
			}
			now := f.of(&g.Core)
			if now == 0 {
				return refuse("GPU %d does not report it", i)
			}
			if present == 0 && now != f.problem {
				continue
			}
			changed = changed || now != f.value(present != 0)
			setHealth(&g.Core, f, f.value(present != 0))
		}
		if !changed {
			return refuse("the health is so already")
		}
		return nil
	})
}
