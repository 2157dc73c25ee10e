package state

// GraphicsClocks lists the graphics clocks in MHz that a GPU of the model supports at its highest memory clock, the highest first: steps of
// 15 MHz down to the lowest clock of the architecture, and from Blackwell on steps of 7.5 MHz, cut to whole ones (nvidia-smi -q -x of seven
// machines, smi/testdata/machines.tsv). nvml/engine.c has the same.
func (m *Model) GraphicsClocks() []uint32 {
	const turing, hopper, blackwell = 6, 9, 10
	// In halves of a MHz.
	lowest, step := uint32(2*210), uint32(30)
	switch {
	case m.Architecture == turing:
		lowest = 2 * 300
	case m.Architecture == hopper:
		lowest = 2 * 345
	case m.Architecture >= blackwell:
		lowest, step = 2*120, 15
	}
	var all []uint32
	for clock := (2*m.ClockGraphics + 14) / 15 * 15; clock >= lowest; clock -= step {
		all = append(all, clock/2)
	}
	return all
}
