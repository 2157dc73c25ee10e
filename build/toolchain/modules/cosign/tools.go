//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "github.com/sigstore/cosign/v3/cmd/cosign"
)
