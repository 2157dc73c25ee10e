// Package cudatest tests libcuda.so.1, whose C source is one directory up. It is a stand-in for CUDA's driver interface that counts
// memory and time on the node's GPUs and computes nothing. NVML and nvidia-smi of the same node show the use of a process.
package cudatest
