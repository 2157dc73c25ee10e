// Package nvmltest drives libnvidia-ml.so.1, whose C source is one directory up, with a client in C. It tests functions that go-nvml cannot
// call, since go-nvml always uses the newest versions.
package nvmltest
