package smi

import (
	"fmt"
	"strconv"
	"strings"
)

// share reduces GPUs to a container's shares of them, as they show where a limiter is preloaded: the GPUs of NVIDIA_VISIBLE_DEVICES
// in its order, each with the memory of CUDA_DEVICE_MEMORY_LIMIT_<i> ("10240m"). It plays the limiter, which does this to the real
// nvidia-smi by answering NVML's calls; it enforces no limit. Without a limit in the environment nothing changes.
func (c *Command) share(gpus []gpu) ([]gpu, error) {
	if c.Getenv == nil {
		return gpus, nil
	}
	var out []gpu
	limited := false
	for i, id := range split(c.Getenv("NVIDIA_VISIBLE_DEVICES")) {
		text := c.Getenv(fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d", i))
		for _, g := range gpus {
			if g.uuid() != id {
				continue
			}
			g.index = i
			if text != "" {
				mebibytes, err := strconv.ParseUint(strings.TrimSuffix(text, "m"), 10, 32)
				if err != nil {
					return nil, fmt.Errorf("CUDA_DEVICE_MEMORY_LIMIT_%d is %q, where MiB such as 10240m are expected", i, text)
				}
				g.limit, limited = mebibytes<<20, true
			}
			out = append(out, g)
		}
	}
	if !limited {
		return gpus, nil
	}
	return out, nil
}

// total is the shown memory, in bytes.
func (g gpu) total() uint64 {
	if g.limit > 0 {
		return g.limit
	}
	return g.model.MemoryTotal
}

// free is how much of it is shown as free, in bytes.
func (g gpu) free() uint64 {
	if g.limit > 0 {
		return g.limit - min(g.limit, g.used())
	}
	return g.model.MemoryTotal - g.model.MemoryReserved - g.used()
}
