// Package nvmltest drives libnvidia-ml.so.1, whose C source is one directory up, with a client in C: what go-nvml, which asks for the
// newest versions of functions in a process of its own making, cannot show.
package nvmltest
