// Package profiles holds the machine models that ship with fakefabric, one YAML file each.
package profiles

import "embed"

// FS has one file <name>.yaml per machine model.
//
//go:embed *.yaml
var FS embed.FS
