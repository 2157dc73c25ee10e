//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "github.com/cert-manager/cert-manager/pkg/controller"
)
