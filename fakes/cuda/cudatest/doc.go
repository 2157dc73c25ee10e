// Package cudatest tests libcuda.so.1, whose C source is one directory up: a stand-in for CUDA's driver interface that counts memory and
// time on the node's GPUs and computes nothing. What a process does with it shows in NVML and nvidia-smi of the same node.
package cudatest
