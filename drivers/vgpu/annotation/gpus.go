package annotation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseGPUs reads the value of NodeRegister, as this project's plugin or Volcano's writes it: the GPUs in the order of their index.
// An older plugin does not write a mode, which means software sharing.
func ParseGPUs(value string) ([]GPU, error) {
	if len(value) > maximumLength {
		return nil, fmt.Errorf("%s of %d bytes, where at most %d are read", NodeRegister, len(value), maximumLength)
	}
	var gpus []GPU
	for field := range strings.SplitSeq(value, ":") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		gpu, err := parseGPU(field)
		if err != nil {
			return nil, fmt.Errorf("%s: GPU %d (%q): %w", NodeRegister, len(gpus), shorten(field), err)
		}
		if slices.ContainsFunc(gpus, func(other GPU) bool { return other.UUID == gpu.UUID }) {
			return nil, fmt.Errorf("%s: GPU %d: %s is listed twice", NodeRegister, len(gpus), gpu.UUID)
		}
		if len(gpus) == maximumShares {
			return nil, fmt.Errorf("%s: more than %d GPUs", NodeRegister, maximumShares)
		}
		gpus = append(gpus, gpu)
	}
	return gpus, nil
}

func parseGPU(field string) (GPU, error) {
	parts := strings.Split(field, ",")
	if len(parts) != 5 && len(parts) != 6 {
		return GPU{}, fmt.Errorf("%d fields, where UUID,count,memory,type,health and mode are 6", len(parts))
	}
	gpu := GPU{UUID: parts[0], Model: strings.TrimPrefix(parts[3], "NVIDIA-"), Mode: ModeSoftware}
	if !ValidUUID(gpu.UUID) {
		return GPU{}, fmt.Errorf("%q is not a GPU's UUID (GPU- and hexadecimal digits)", shorten(gpu.UUID))
	}
	var err error
	if gpu.Slots, err = strconv.Atoi(parts[1]); err != nil || gpu.Slots < 0 {
		return GPU{}, fmt.Errorf("count %q, where a whole number of sharers from 0 is allowed", shorten(parts[1]))
	}
	if gpu.Memory, err = strconv.ParseInt(parts[2], 10, 64); err != nil || gpu.Memory < 0 || gpu.Memory > maximumMemory {
		return GPU{}, fmt.Errorf("memory %q, where a whole number of units from 0 to %d is allowed", shorten(parts[2]), int64(maximumMemory))
	}
	if gpu.Healthy, err = strconv.ParseBool(parts[4]); err != nil {
		return GPU{}, fmt.Errorf("health %q, where true and false are allowed", shorten(parts[4]))
	}
	if len(parts) == 6 && parts[5] != "" {
		gpu.Mode = Mode(parts[5])
	}
	if gpu.Mode != ModeSoftware && gpu.Mode != ModeMIG {
		return GPU{}, fmt.Errorf("mode %q, where %s and %s are allowed", shorten(parts[5]), ModeSoftware, ModeMIG)
	}
	return gpu, nil
}
