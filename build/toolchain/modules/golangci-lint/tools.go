//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"
)
