package smi

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpufabric.io/fakes/state"
)

// monitoring are the options of dmon and pmon.
type monitoring struct {
	gpus []string
	// count is how many samples to take, 0 without end, one each delay.
	count int
	delay time.Duration
}

func parseMonitoring(name string, args []string) (monitoring, error) {
	m := monitoring{delay: time.Second}
	for i := 0; i < len(args); i += 2 {
		if i+1 >= len(args) {
			return m, fmt.Errorf("%s: option %s needs a value", name, args[i])
		}
		n, err := strconv.Atoi(args[i+1])
		switch args[i] {
		case "-i", "--id":
			m.gpus = split(args[i+1])
		case "-c", "--count":
			if err != nil || n < 1 {
				return m, fmt.Errorf("%s -c %s: want a number of samples from 1", name, args[i+1])
			}
			m.count = n
		case "-d", "--delay":
			if err != nil || n < 1 || n > 10 {
				return m, fmt.Errorf("%s -d %s: want seconds from 1 to 10", name, args[i+1])
			}
			m.delay = time.Duration(n) * time.Second
		default:
			return m, fmt.Errorf("%s: option %q is unknown; allowed are -i, -c and -d", name, args[i])
		}
	}
	return m, nil
}

// monitor prints the head, and a sample each delay until there were enough of them or Done is closed.
func (c *Command) monitor(name string, args []string, head string, sample func(gpu) string) error {
	m, err := parseMonitoring(name, args)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		gpus, err := c.selected(m.gpus)
		if err != nil {
			return err
		}
		var b strings.Builder
		if n == 0 {
			b.WriteString(head)
		}
		for _, g := range gpus {
			b.WriteString(sample(g))
		}
		if err := c.print("%s", b.String()); err != nil || n+1 == m.count {
			return err
		}
		select {
		case <-time.After(m.delay):
			c.Now = c.Now.Add(m.delay)
		case <-c.Done:
			return nil
		}
		if err := c.read(); err != nil {
			return err
		}
	}
}

// dmon prints a line of telemetry for each GPU.
func (c *Command) dmon(args []string) error {
	const head = "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk \n" +
		"# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz \n"
	return c.monitor("dmon", args, head, func(g gpu) string {
		memory := "-"
		if g.model.TempMemory > 0 {
			memory = fmt.Sprint(g.Core.TemperatureMem)
		}
		return fmt.Sprintf("%5d %6d %6d %6s %6d %6d %6d %6d %6d %6d %6d %6d \n", g.index, g.Core.Power/1000, g.Core.Temperature, memory,
			g.utilisation(c.Now), g.Core.UtilizationMem, 0, 0, 0, 0, g.Core.ClockMemory, g.Core.ClockSM)
	})
}

// pmon prints a line for each process, or one of dashes for a GPU without any.
func (c *Command) pmon(args []string) error {
	const head = "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command \n" +
		"# Idx           #    C/G      %      %      %      %      %      %    name \n"
	return c.monitor("pmon", args, head, func(g gpu) string {
		var b strings.Builder
		for _, p := range g.processes() {
			fmt.Fprintf(&b, "%5d %10d %5s %6d %6s %6s %6s %6s %6s    %-15s\n", g.index, p.PID, processType(p),
				occupancy(p, c.Now), "-", "-", "-", "-", "-", cut(processName(p), 24))
		}
		if b.Len() == 0 {
			return fmt.Sprintf("%5d %10s %5s %6s %6s %6s %6s %6s %6s    %-15s\n", g.index, "-", "-", "-", "-", "-", "-", "-", "-", "-")
		}
		return b.String()
	})
}

// occupancy is a process's part of the multiprocessors in percent: all while one of its kernels runs.
func occupancy(p state.Process, now time.Time) uint32 {
	if p.BusyUntil > uint64(now.UnixMicro()) {
		return 100
	}
	return p.SM
}
