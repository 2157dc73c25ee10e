//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "sigs.k8s.io/jobset"
)
