// Package limiter is libvgpu.so, the library that holds the processes of a container to its shares of GPUs: C, with the C library alone. It
// is built by make, and its tests are run from here. README.md says what it counts, and what it does not.
package limiter
