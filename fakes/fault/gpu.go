package fault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpufabric.io/fakes/mig"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// NVML's event types, and numbers of its enumerations.
const (
	eventSingleBitECC = 0x1
	eventDoubleBitECC = 0x2
	eventXID          = 0x8
	xidOffTheBus      = 79
)

// living returns the GPU, unless it is lost already.
func (c *change) living(fn func(*state.Model, *state.GPU) error) error {
	return c.onGPU(func(m *state.Model, g *state.GPU) error {
		if g.Core.Lost != 0 {
			return refuse("GPU %s is lost; inject gpu-back first", c.args["gpu"])
		}
		return fn(m, g)
	})
}

func (c *change) post(kind, data uint64, gi, ci uint32) error {
	i, err := c.gpu()
	if err != nil {
		return err
	}
	if kind == eventXID {
		if err := c.logXID(i, data); err != nil {
			return err
		}
	}
	return c.file.Post(state.Event{Type: kind, Data: data, GPU: uint32(i), GPUInstance: gi, ComputeInstance: ci})
}

func xid(c *change) error {
	code, err := c.number("code", 1, 999)
	if err != nil {
		return err
	}
	gi, ci := uint32(state.None), uint32(state.None)
	err = c.living(func(_ *state.Model, g *state.GPU) error {
		if c.args["gi"] == "" {
			if c.args["ci"] != "" {
				return errors.New("ci needs gi")
			}
			return nil
		}
		n, err := c.number("gi", 0, mig.GPUInstanceIDs-1)
		if err != nil {
			return err
		}
		gi = uint32(n)
		in := mig.FindGPUInstance(g, gi)
		if in == nil {
			return refuse("GPU %s has no GPU instance %d", c.args["gpu"], gi)
		}
		if c.args["ci"] == "" {
			return nil
		}
		if n, err = c.number("ci", 0, mig.ComputeInstanceIDs-1); err != nil {
			return err
		}
		ci = uint32(n)
		if mig.FindComputeInstance(in, ci) == nil {
			return refuse("GPU instance %d has no compute instance %d", gi, ci)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.post(eventXID, uint64(code), gi, ci)
}

// sram counts errors of caches and registers; parity finds those that cannot be corrected.
func sram(e *state.ECC, kind string, count uint64) error {
	for _, s := range []*state.SRAM{&e.VolatileSRAM, &e.AggregateSRAM} {
		switch kind {
		case "corrected":
			s.Corrected += count
		case "uncorrected":
			s.Parity += count
		default:
			return fmt.Errorf("kind is %q, want corrected or uncorrected", kind)
		}
	}
	return nil
}

func ecc(c *change) error {
	count, err := c.number("count", 1, 1<<30)
	if err != nil {
		return err
	}
	kind := uint64(eventSingleBitECC)
	err = c.living(func(m *state.Model, g *state.GPU) error {
		if m.ECC == 0 {
			return refuse("the model has no ECC")
		}
		e := &g.Core.ECC
		switch place := c.args["place"]; place {
		case "", "dram":
		case "sram":
			if c.args["kind"] == "uncorrected" {
				kind = eventDoubleBitECC
			}
			return sram(e, c.args["kind"], uint64(count))
		default:
			return fmt.Errorf("place is %q, want dram or sram", place)
		}
		switch c.args["kind"] {
		case "corrected":
			e.VolatileCorrected += uint64(count)
			e.AggregateCorrected += uint64(count)
		case "uncorrected":
			kind = eventDoubleBitECC
			e.VolatileUncorrected += uint64(count)
			e.AggregateUncorrected += uint64(count)
		default:
			return fmt.Errorf("kind is %q, want corrected or uncorrected", c.args["kind"])
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.post(kind, 0, state.None, state.None)
}

func gpuLost(c *change) error {
	if err := c.living(func(_ *state.Model, g *state.GPU) error { g.Core.Lost = 1; return nil }); err != nil {
		return err
	}
	return c.post(eventXID, xidOffTheBus, state.None, state.None)
}

func gpuBack(c *change) error {
	return c.onGPU(func(_ *state.Model, g *state.GPU) error {
		if g.Core.Lost == 0 {
			return refuse("GPU %s is not lost", c.args["gpu"])
		}
		g.Core.Lost = 0
		return nil
	})
}

func nvlink(active uint32) func(*change) error {
	return func(c *change) error {
		return c.living(func(m *state.Model, g *state.GPU) error {
			if m.LinkCount == 0 {
				return refuse("the model has no NVLink")
			}
			n, err := c.number("link", 0, int(m.LinkCount)-1)
			if err != nil {
				return err
			}
			if g.Links[n].Active == active {
				return refuse("link %d is so already", n)
			}
			g.Links[n].Active = active
			down := func(l state.Link) bool { return l.Active == 0 }
			health := healthFields()["bandwidth"].value(slices.ContainsFunc(g.Links[:m.LinkCount], down))
			setHealth(&g.Core, healthFields()["bandwidth"], health)
			return nil
		})
	}
}

func cliqueChange(c *change) error {
	states := map[string]uint32{"not-supported": 0, "not-started": 1, "in-progress": 2, "completed": 3}
	wanted, ok := states[c.args["state"]]
	if !ok {
		return fmt.Errorf("state is %q, want completed, in-progress, not-started or not-supported", c.args["state"])
	}
	one := -1
	if c.args["gpu"] != "all" {
		var err error
		if one, err = c.gpu(); err != nil {
			return err
		}
	}
	return c.file.Update(func(b *state.Body) error {
		if len(b.GPUs) == 0 || b.GPUs[0].Core.FabricState == 0 && c.args["cluster"] == "" {
			return refuse("the node has no NVLink fabric")
		}
		for i, g := range b.GPUs {
			if one >= 0 && i != one {
				continue
			}
			g.Core.FabricState = wanted
			if u := c.args["cluster"]; u != "" {
				g.Core.FabricCluster = profile.ParseUUID(u)
				if profile.FormatUUID(g.Core.FabricCluster) != u {
					return fmt.Errorf("cluster is %q, want a UUID in small letters", u)
				}
			}
			if c.args["clique"] != "" {
				n, err := c.number("clique", 0, 1<<31-1)
				if err != nil {
					return err
				}
				g.Core.FabricClique = uint32(n)
			}
		}
		return nil
	})
}

func memory(c *change) error {
	return c.living(func(m *state.Model, g *state.GPU) error {
		n, err := c.number("mib", 0, int(m.MemoryTotal>>20))
		if err != nil {
			return err
		}
		g.Core.MemoryUsed = uint64(n) << 20
		return nil
	})
}

func utilisation(c *change) error {
	percent, err := c.number("percent", 0, 100)
	if err != nil {
		return err
	}
	mem, err := c.number("memory", 0, 100)
	if err != nil {
		return err
	}
	return c.living(func(m *state.Model, g *state.GPU) error {
		g.Core.UtilizationGPU, g.Core.UtilizationMem = uint32(percent), uint32(mem)
		g.Core.ClockReasons, g.Core.ClockGraphics, g.Core.ClockSM = 0, m.ClockGraphics, m.ClockSM
		if percent == 0 {
			g.Core.ClockReasons, g.Core.ClockGraphics, g.Core.ClockSM = 1, m.ClockIdle, m.ClockIdle
		}
		return nil
	})
}

func temperature(c *change) error {
	v, err := c.number("celsius", 0, 150)
	if err != nil {
		return err
	}
	return c.living(func(_ *state.Model, g *state.GPU) error { g.Core.Temperature = uint32(v); return nil })
}

func power(c *change) error {
	v, err := c.number("watts", 0, 10000)
	if err != nil {
		return err
	}
	return c.living(func(_ *state.Model, g *state.GPU) error { g.Core.Power = uint32(v) * 1000; return nil })
}

func migBusy(c *change) error {
	busy, err := c.flag("busy")
	if err != nil {
		return err
	}
	return c.living(func(m *state.Model, g *state.GPU) error {
		if m.MIGProfileCount == 0 {
			return refuse("the model has no MIG")
		}
		g.Core.MIGBusy = busy
		return nil
	})
}

func migMode(c *change) error {
	enabled, err := c.flag("enabled")
	if err != nil {
		return err
	}
	err = c.living(func(m *state.Model, g *state.GPU) error {
		if m.MIGProfileCount == 0 {
			return refuse("the model has no MIG")
		}
		g.Core.MIGPending = enabled
		mig.Restart(g)
		return nil
	})
	if err != nil {
		return err
	}
	b, err := c.file.Read()
	if err != nil {
		return err
	}
	return tree.SyncMIG(c.root, b)
}

func driverVersion(c *change) error {
	version := c.args["version"]
	if major, rest, ok := strings.Cut(version, "."); !ok || major == "" || rest == "" || len(version) > 20 ||
		strings.Trim(version, "0123456789.") != "" {
		return fmt.Errorf("version is %q, want one like 535.261.03", version)
	}
	path := filepath.Join(c.root, "proc/driver/nvidia/version")
	text, err := os.ReadFile(path)
	if err != nil {
		return refuse("the node has no driver")
	}
	return c.file.Update(func(b *state.Body) error {
		before := state.String(b.Node.DriverVersion[:])
		state.SetString(b.Node.DriverVersion[:], version)
		return c.replace(path, strings.Replace(string(text), before, version, 1))
	})
}

func uvm(loaded bool) func(*change) error {
	return func(c *change) error { return tree.SetUVM(c.root, loaded) }
}

func delay(c *change) error {
	// Only the C library has the names; this rejects impossible ones.
	if f := c.args["function"]; f != "*" && !strings.HasPrefix(f, "nvml") {
		return fmt.Errorf("function is %q, want the name of an NVML function such as nvmlDeviceGetMemoryInfo, or * for all", f)
	}
	ms, err := c.number("ms", 0, 600000)
	if err != nil {
		return err
	}
	return c.file.Update(func(b *state.Body) error {
		return b.Node.SetDelay(c.args["function"], time.Duration(ms)*time.Millisecond)
	})
}
