// Package limiter is libvgpu.so, the library that holds the processes of a container to its shares of GPUs: C, with the C library alone.
// README.md says what it counts, and what it does not. Here is what the node's plugins need of it: to put it on the host, and to say a
// container's limits in the file that it reads.
package limiter
