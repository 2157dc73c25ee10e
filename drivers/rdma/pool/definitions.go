package pool

import (
	"fmt"

	"gpufabric.io/drivers/rdma/config"
)

// Definitions are all pools of a node in the order in which they are served: the file's first, then the RDMAPools without a mistake. A nil
// file has none.
func Definitions(file *config.Config, pools []Object) []Definition {
	var definitions []Definition
	if file != nil {
		for i, c := range file.Pools {
			definitions = append(definitions, Definition{RDMAPoolConfig: c, Source: fmt.Sprintf("config.json configList[%d]", file.Entries[i])})
		}
	}
	for i := range pools {
		if p := &pools[i]; p.Mistake == nil {
			definitions = append(definitions, Definition{RDMAPoolConfig: p.Config, Source: p.Source(), Object: p.Name, Generation: p.Generation})
		}
	}
	return definitions
}
