//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "golang.org/x/vulndb/cmd/indexdb"
)
