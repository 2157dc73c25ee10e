//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "sigs.k8s.io/dra-driver-nvidia-gpu/cmd/compute-domain-kubelet-plugin"
	_ "sigs.k8s.io/dra-driver-nvidia-gpu/cmd/gpu-kubelet-plugin"
)
