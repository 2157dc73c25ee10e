package claims

import (
	"fmt"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/draplugin"
)

// shareEdits describe the share to a limiter inside the container (HAMi-core, and others that read the same variables). index
// counts the claim's shares in the order of the allocation: limits never depend on the order of a map, and two shares of one GPU
// stay two. A container that uses one of several requests sees that share's GPU as its first, and no variable has the right index
// for it: there the variables without an index apply.
func shareEdits(index int, allocated draplugin.AllocatedDevice) specs.ContainerEdits {
	var e specs.ContainerEdits
	// A counted share that does not request memory has no limit.
	if memory, ok := allocated.ConsumedCapacity[devices.CapMemory]; ok && memory.Sign() > 0 {
		e.Env = append(e.Env, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d=%dm", index, memory.Value()>>20),
			fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dm", memory.Value()>>20))
	}
	if cores, ok := allocated.ConsumedCapacity[devices.CapCores]; ok {
		// HAMi-core reads only the variable without an index; it applies to every device of the container.
		e.Env = append(e.Env, fmt.Sprintf("CUDA_DEVICE_SM_LIMIT_%d=%d", index, cores.Value()),
			fmt.Sprintf("CUDA_DEVICE_SM_LIMIT=%d", cores.Value()))
	}
	return e
}
