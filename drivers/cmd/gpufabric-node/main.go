// Command gpufabric-node runs one role of a node; `gpufabric-node help` lists them.
package main

import (
	"os"

	"gpufabric.io/drivers/program/node"
)

func main() { os.Exit(node.Program().Main()) }
