//go:build tools

// Package tools pins what the toolchain builds from this module.
package tools

import (
	_ "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"
)
