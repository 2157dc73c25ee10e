/* What MIG instances leave in the node's tree: proc/driver/nvidia/capabilities/gpuN/mig/giN[/ciN]/access and dev/nvidia-caps/nvidia-capN.
 * A process that sees only the library and the state (a container) cannot write there. `fakefabric agent` then writes what the kernel has
 * in /proc; device nodes appear for clients with a writable /dev alone. */
#pragma once

/* ci is FF_NONE for the GPU instance itself. gpu is the GPU's minor. */
void ff_mig_files_add(unsigned int gpu, unsigned int gi, unsigned int ci);
void ff_mig_files_remove(unsigned int gpu, unsigned int gi, unsigned int ci);
