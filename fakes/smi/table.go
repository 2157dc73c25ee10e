package smi

import (
	"fmt"
	"os"
	"strings"

	"gpufabric.io/fakes/state"
)

const (
	wideLine = "+-----------------------------------------------------------------------------------------+\n"
	gpuLine  = "+-----------------------------------------+------------------------+----------------------+\n"
	migLine  = "+------------------+----------------------------------+-----------+-----------------------+\n"
)

// table prints the overview.
func (c *Command) table(gpus []gpu) error {
	var b strings.Builder
	driver := c.driver()
	fmt.Fprintf(&b, "%s       \n%s", c.Now.Format("Mon Jan _2 15:04:05 2006"), wideLine)
	fmt.Fprintf(&b, "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", driver, driver, c.cuda())
	b.WriteString(gpuLine +
		"| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n" +
		"| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n" +
		"|                                         |                        |               MIG M. |\n" +
		"|=========================================+========================+======================|\n")
	for _, g := range gpus {
		c.writeGPU(&b, g)
	}
	writeMIG(&b, gpus)
	b.WriteString("\n" + wideLine +
		"| Processes:                                                                              |\n" +
		"|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n" +
		"|        ID   ID                                                               Usage      |\n" +
		"|=========================================================================================|\n")
	if !writeProcesses(&b, gpus) {
		b.WriteString("|  No running processes found                                                             |\n")
	}
	b.WriteString(wideLine)
	return c.print("%s", b.String())
}

func (c *Command) writeGPU(b *strings.Builder, g gpu) {
	s := c.summarise(g)
	fmt.Fprintf(b, "| %3d  %-25s %7s  | %18s %3s | %20s |\n", g.index, cut(s.name, 25), s.persistence, s.busID, "Off", s.ecc)
	fmt.Fprintf(b, "| N/A  %3sC    %-3s %14s / %4sW | %22s | %7s %12s |\n", s.celsius, s.pstate, s.watts+"W", s.cap, s.memory, s.util,
		s.computeMode)
	fmt.Fprintf(b, "|                                         |                        | %20s |\n%s", s.mig, gpuLine)
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n-3] + "..."
	}
	return s
}

// summary has the table's values of a GPU.
type summary struct {
	name, persistence, busID, ecc, celsius, pstate, watts, cap, memory, util, computeMode, mig string
}

func (c *Command) summarise(g gpu) summary {
	s := summary{name: g.name(), persistence: "Off", busID: g.busID(), ecc: "N/A", mig: "N/A"}
	if g.Core.Persistence != 0 {
		s.persistence = "On"
	}
	if g.model.ECC != 0 {
		s.ecc = fmt.Sprint(g.Core.ECC.VolatileUncorrected)
	}
	s.celsius, s.pstate = fmt.Sprint(g.Core.Temperature), fmt.Sprintf("P%d", g.Core.PerformanceState)
	s.watts, s.cap = fmt.Sprint((g.Core.Power+500)/1000), fmt.Sprint(g.Core.PowerLimit/1000)
	s.memory = fmt.Sprintf("%dMiB / %6dMiB", g.used()>>20, g.total()>>20)
	if g.model.Integrated != 0 {
		s.memory = "Not Supported"
	}
	s.util = fmt.Sprintf("%d%%", g.utilisation(c.Now))
	s.computeMode = []string{"Default", "E. Thread", "Prohibited", "E. Process"}[g.Core.ComputeMode&3]
	if g.model.MIGProfileCount > 0 {
		s.mig = []string{"Disabled", "Enabled"}[g.Core.MIGCurrent&1]
		if g.Core.MIGCurrent != 0 {
			s.util = "N/A"
		}
	}
	return s
}

func writeMIG(b *strings.Builder, gpus []gpu) {
	headed := false
	for _, g := range gpus {
		for i, m := range g.migDevices() {
			if !headed {
				headed = true
				b.WriteString("\n" + wideLine +
					"| MIG devices:                                                                            |\n" + migLine +
					"| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |\n" +
					"|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n" +
					"|                  |                                  |        ECC|                       |\n" +
					"|==================+==================================+===========+=======================|\n")
			}
			p := m.profile
			fmt.Fprintf(b, "| %2d  %3d  %2d  %2d  | %13dMiB / %6dMiB     | %3d     0 | %2d  %2d   %2d   %2d   %2d |\n%s", g.index, m.gi.ID, m.ci.ID,
				i,
				g.usedBy(m)>>20, p.MemoryMiB, m.compute.Multiprocessors, p.CopyEngines, p.Encoders, p.Decoders, p.OFA, p.JPEG, migLine)
		}
	}
}

// usedBy is the memory of the processes on a MIG device.
func (g gpu) usedBy(m migDevice) uint64 {
	var total uint64
	for _, p := range g.processes() {
		if p.GPUInstance == m.gi.ID && p.ComputeInstance == m.ci.ID {
			total += p.Memory
		}
	}
	return total
}

// writeProcesses reports whether there were any.
func writeProcesses(b *strings.Builder, gpus []gpu) bool {
	any := false
	for _, g := range gpus {
		for _, p := range g.processes() {
			any = true
			fmt.Fprintf(b, "| %4d  %4s %4s  %15d %6s   %-36s %6dMiB |\n", g.index, instance(p.GPUInstance), instance(p.ComputeInstance), p.PID,
				processType(p), cut(processName(p), 36), p.Memory>>20)
		}
	}
	return any
}

func processType(p state.Process) string { return []string{"C", "G", "M+C"}[min(p.Type, 2)] }

// processName reads the name from the kernel, or from the state where the process is in another PID namespace.
func processName(p state.Process) string {
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); err == nil {
		name, _, _ := strings.Cut(string(data), "\x00")
		return name
	}
	return state.String(p.Name[:])
}

func instance(id uint32) string {
	if id == state.None {
		return "N/A"
	}
	return fmt.Sprint(id)
}
