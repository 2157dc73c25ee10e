// Package limiter is libvgpu.so, the library that keeps the processes of a container within its shares of GPUs. It is written in C
// and needs only the C library. README.md lists the memory that it counts, and the memory that it does not. The Go code here is for
// the node's plugins: it installs the library on the host, and writes a container's limits to the file that the library reads.
package limiter
