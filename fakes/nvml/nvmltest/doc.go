// Package nvmltest drives libnvidia-ml.so.1, whose C source is one directory up, with a client in C. It shows what go-nvml cannot,
// which always uses the newest versions of functions.
package nvmltest
