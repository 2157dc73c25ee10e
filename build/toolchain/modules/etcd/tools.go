//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
